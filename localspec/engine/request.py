"""What comes back of a `Request`: `Event`s."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from localspec.engine.stats import RequestStats


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
