"""One request in flight: first its prompt is read, chunk by chunk, then it is decoded, pass by pass, into `Event`s."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from localspec.engine.interfaces import Constraint, History, Outcome, Request
from localspec.engine.stats import Comparison, RequestStats
from localspec.errors import LocalspecError
from localspec.types import Noise, Rule


class TextStream:
    """Decodes token bytes and watches for stop strings across token boundaries.

    Text that could still turn out to be the beginning of a stop string is held back until that is known. Bytes that
    are no UTF-8 become U+FFFD, as in every other engine."""

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False
        """A stop string came; text after it is dropped."""

    def push(self, piece: bytes, watch: bool = True) -> str:
        """Takes one token's bytes, returns the text that may be shown now. Without `watch` a stop string neither
        ends nor begins in these bytes."""
        text = self._held + self._decoder.decode(piece)
        if watch:
            return self._check(text)
        self._held = ""
        return text

    def finish(self) -> str:
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(b"", final=True)
        shown = self._check(text)
        self._held = ""
        return shown if self.stopped else text

    def _check(self, text: str) -> str:
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        hold = max((overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0


class FinishReason(str, Enum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended its turn, or a stop string came."""
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"
    ERROR = "error"
    """The engine failed; the generation raises the error."""


class Origin(NamedTuple):
    """Where an emitted token came from."""

    drafter: str
    """Name of the drafter whose guess was accepted; "" = the target's own token."""
    depth: int
    """Position in the draft, 1 = first guess; 0 = the target's own token."""


TARGET_ORIGIN = Origin("", 0)


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """Log-probability of an emitted token under the target's raw distribution (before any sampling setting), or under
    the one it was drawn from (`Options.drawn_log_probs`); -inf = it could not be drawn."""

    token: int
    log_prob: float
    logit: float
    """The raw logit that `log_prob` came from."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens at this position and their log-probabilities."""


class PassRecord(NamedTuple):
    """One pass of a slot: the draft, the verdict, the width and the seconds, for display."""

    drafter: str
    """Name of the drafter that guessed; "" = no draft."""
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
    """Per node, name of the drafter that guessed it, in answers of older versions; empty = `drafter` guessed all."""

    @classmethod
    def of(cls, outcome: Outcome, width: int, seconds: float) -> PassRecord:
        draft, verdict = outcome.draft, outcome.verdict
        nodes = tuple(draft.tokens.tolist()), tuple(draft.parents.tolist()), tuple(verdict.accepted.tolist())
        return cls(draft.origin if nodes[0] else "", *nodes, verdict.next_token, width, seconds)

    def drafter_of(self, node: int) -> str:
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


@dataclass(slots=True, eq=False)
class Slot:
    """A request in one slot of the loop, with its history, its text and its statistics."""

    index: int
    request: Request
    history: History
    text: TextStream
    stats: RequestStats
    started: float
    """perf_counter() when the request arrived."""
    cancel: Callable[[], bool]
    """Says whether the caller wants no more; asked between passes and while the prompt is read."""
    constraint: Constraint | None = None
    """The request's grammar in the state after the answer so far; None = no grammar."""
    progress: Callable[[int, int], None] | None = None
    """Called after each chunk of the prompt with (tokens cached, tokens to cache)."""
    cached: int = 0
    said: int = 0
    """Number of answer tokens that are read like the prompt, since a target whose device failed generated them."""
    overtaken: int = 0
    """Tokens of other prompts that were read while this one waited for its turn."""
    last_arrival: float = 0.0
    """perf_counter() at the end of the last pass or the last chunk of the prompt."""
    comparison: Comparison = field(default_factory=Comparison)
    """With what plain decoding would have taken."""
    compared: float = 0.0
    """perf_counter() when its totals were last written into the statistics."""
    finish: FinishReason | None = None
    failure: LocalspecError | None = None
    """The error that ended this request; other requests go on."""

    @property
    def unread(self) -> int:
        """Number of tokens to read before the first pass, which takes the last token of the prompt."""
        return max(0, len(self.request.prompt) + self.said - 1 - self.cached)

    @property
    def room(self) -> int | None:
        """Tokens that may still be generated by the request's own limit."""
        limit = self.request.max_tokens
        return None if limit is None else limit - self.stats.generated

    def noise(self) -> Noise:
        """The request's random numbers. *rejection* and *block* get a new round for every pass."""
        request = self.request
        fresh = request.rule is not Rule.COUPLED
        return Noise(request.seed, request.stream, len(self.history) if fresh else 0)
