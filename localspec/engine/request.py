"""What a caller asks for and what comes back: `Request` in, `Event`s out."""

from __future__ import annotations

import secrets
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple

from localspec.engine.interfaces import Constraint
from localspec.engine.stats import RequestStats
from localspec.errors import UsageError
from localspec.options import Options
from localspec.types import NO_TOKENS, Rule, Tokens


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
class Request(Options):
    """One answer to generate: the caller's options, with what the engine adds."""

    prompt: Tokens
    """int32[n], n >= 1."""
    _: KW_ONLY
    seed: int = field(default_factory=fresh_seed)
    rule: Rule = Rule.COUPLED
    prediction: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[m]."""
    grammar: Constraint | None = None
    """Compiled (`grammar.matcher.Compiler`)."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if len(self.prompt) == 0:
            raise UsageError("The prompt is empty.", "Give it at least one token of text.")

    @classmethod
    def of(cls, options: Options, prompt: Tokens, **added: Any) -> Request:
        """A request of what the caller said, but for what is added, by name."""
        given = {one.name: getattr(options, one.name) for one in fields(Options)}
        return cls(prompt, **{**given, **added})


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
