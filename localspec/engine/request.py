"""What a caller asks for and what comes back: `Request` in, `Event`s out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from localspec.engine.interfaces import Constraint
from localspec.engine.stats import RequestStats
from localspec.errors import UsageError
from localspec.types import NO_TOKENS, Rule, SamplingParams, Tokens


class FinishReason(str, Enum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended its turn, or a stop string came."""
    LENGTH = "length"
    """`max_tokens` was reached."""
    CONTEXT = "context"
    """The context is full."""
    CANCELLED = "cancelled"
    """The caller stopped it."""
    ERROR = "error"
    """The engine failed; the generation raises the error."""


def fresh_seed() -> int:
    """A random 64-bit seed; store it with the answer to be able to repeat it."""
    return secrets.randbits(64)


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate."""

    prompt: Tokens
    """int32[n], n >= 1."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = field(default_factory=fresh_seed)
    """0 to 2^64 - 1; with *coupled*, equal seeds and settings give equal text."""
    stream: int = 0
    """Index of the choice when several are asked for with one seed."""
    rule: Rule = Rule.COUPLED
    max_draft_tokens: int | None = None
    """At most so many nodes a draft for this request; 0 = plain decoding; None = whatever the plan finds best."""
    drafter: str | None = None
    """The only drafter that may guess for this request; "none" = plain decoding; None = the plan chooses."""
    forced: bool = False
    """Whether the plan drafts in every pass, even where drafts do not pay."""
    prediction: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[m], tokens the answer is expected to hold: prompt lookup searches them, too. Never changes the text."""
    constraint: Constraint | None = None
    """A grammar the answer must follow (`grammar.matcher.Compiler` makes one). The answer ends when the grammar is
    complete, even without an end token. None = no grammar."""
    max_tokens: int | None = None
    """At most this many new tokens; None = until the model ends or the context is full."""
    min_tokens: int = 0
    """Number of tokens before which no end token, no `stop_tokens` and no `stop` string ends the answer."""
    preserved: frozenset[int] = frozenset()
    """Control tokens whose text is part of the answer, such as the marks around a tool call; others are left out."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end the answer as the model's own end tokens do, and whose text is no part of it."""
    ignore_end: bool = False
    """Go on after end-of-generation tokens (benchmarks)."""
    past: bool = True
    """Whether drafters may search past answers, and later this one. Comparisons say no: their answers are alike."""
    top_log_probs: int | None = None
    """None = no log-probabilities; n = those of the emitted tokens and of the n most likely at each position."""

    def __post_init__(self) -> None:
        for name in ("seed", "stream", "min_tokens", "max_tokens", "max_draft_tokens", "top_log_probs"):
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name not in ("seed", "stream", "min_tokens")):
                raise UsageError(f"{name} is {value!r}; it must be a whole number.")
        if not (self.drafter is None or isinstance(self.drafter, str)):
            raise UsageError(f"drafter is {self.drafter!r}; it must be a name, or None to let the plan choose.")
        if len(self.prompt) == 0:
            raise UsageError("The prompt is empty.", "Give it at least one token of text.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}; it must be 1 or more.")
        if self.min_tokens < 0:
            raise UsageError(f"min_tokens is {self.min_tokens}; it must be 0 or more.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens}; it must not be more than max_tokens, {self.max_tokens}."
            )
        if self.max_draft_tokens is not None and self.max_draft_tokens < 0:
            raise UsageError(f"max_draft_tokens is {self.max_draft_tokens}; it must be 0 or more.")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed is {self.seed}; it must be between 0 and 2^64 - 1.")
        if not 0 <= self.stream < 2**32:
            raise UsageError(f"stream is {self.stream}; it must be between 0 and 2^32 - 1.")
        if any(not text for text in self.stop):
            raise UsageError("A stop string is empty.", "Remove it.")
        if self.top_log_probs is not None and not 0 <= self.top_log_probs <= 100:
            raise UsageError(f"top_log_probs is {self.top_log_probs}; it must be between 0 and 100.")


class Origin(NamedTuple):
    """Where an emitted token came from."""

    drafter: str
    """Name of the drafter whose guess was accepted; "" = the target's own token."""
    depth: int
    """Position in the draft, 1 = first guess; 0 = the target's own token."""


TARGET_ORIGIN = Origin("", 0)


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """Log-probability of an emitted token under the target's raw distribution (before any sampling setting)."""

    token: int
    log_prob: float
    logit: float
    """The raw logit that `log_prob` came from."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens at this position and their log-probabilities."""


class PassRecord(NamedTuple):
    """One pass of a slot: the draft, the verdict, the width and the seconds, for display."""

    drafter: str
    """Name of the drafter that guessed, the first one if several did; "" = no draft."""
    guesses: tuple[int, ...]
    """Tokens of the draft's nodes, in the order they were sent."""
    parents: tuple[int, ...]
    """Index of each node's parent; -1 = the last token before the pass."""
    accepted: tuple[int, ...]
    """Node indices along the accepted path."""
    next_token: int
    """The target's own token after the accepted nodes, even if a stop cut it off."""
    width: int
    """Rows of the pass, over all slots that shared it."""
    seconds: float
    """Time of drafting, verifying and host work together, over all slots that shared the pass."""
    drafters: tuple[str, ...] = ()
    """Per node, name of the drafter that guessed it, if several did; empty = `drafter` guessed all."""

    def drafter_of(self, node: int) -> str:
        """Name of the drafter that guessed a node."""
        return self.drafters[node] if self.drafters else self.drafter


@dataclass(slots=True)
class Event:
    """Tokens and text that one pass brought to one slot."""

    slot: int
    text: str
    """New text, whole characters only; may be later than the tokens."""
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    """Same length as `tokens`."""
    log_probs: tuple[TokenLogProb, ...]
    """Same length as `tokens` when asked for, else empty."""
    finish: FinishReason | None
    """Set on the last event of an answer."""
    stats: RequestStats
    """Live statistics of the request, updated by every pass."""
    record: PassRecord | None = None
    """The pass that made the event; None if no pass did (a cancelled request) or the pass failed."""
