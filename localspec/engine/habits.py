"""What a plan has found out about the requests of a pair, besides what passes cost and how often guesses are right.

It belongs to the pair and not to the plan: who drafts may be changed between two requests (`Engine.configure`), and
that makes a new plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.backoff import Backoff
from localspec.engine.guard import Investment

_RATE_MEMORY = 0.98
_FROM_BEFORE = 6.0
"""Passes that what was reached before is worth when a request begins: contents differ, and a rate that this one cannot
reach would rule out drafts that pay."""
_USUAL_ANSWER = 200.0
"""Tokens of an answer before any was seen."""
_ANSWER_SHARE, _FREE_SHARE = 0.2, 0.7
"""By how much one answer changes what is usual."""
_FIRST_RETRY, _RETRY_GROWTH, _LAST_RETRY = 8.0, 1.5, 4096.0
_FIRST_TURN, _TURN_GROWTH, _LAST_TURN = 8.0, 1.15, 4096.0


@dataclass(slots=True)
class Rate:
    """The rate that is reached, older passes faded."""

    tokens: float = 0.0
    seconds: float = 0.0
    _passes: float = 0.0

    @property
    def value(self) -> float:
        """Tokens/s; 0 = unknown."""
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0

    def begin(self) -> None:
        """A request begins."""
        self._fade(min(1.0, _FROM_BEFORE / self._passes) if self._passes else 1.0)

    def book(self, tokens: float, seconds: float) -> None:
        """A pass brought so many tokens in so many seconds."""
        self._fade(_RATE_MEMORY)
        self.tokens += tokens
        self.seconds += seconds
        self._passes += 1.0

    def _fade(self, kept: float) -> None:
        self.tokens *= kept
        self.seconds *= kept
        self._passes *= kept


@dataclass(slots=True)
class Turn:
    """When a drafter that costs is tried next although it does not seem to pay, and what it owes."""

    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_TURN, _TURN_GROWTH, _LAST_TURN))
    investment: Investment = field(default_factory=Investment)


@dataclass(slots=True)
class Habits:
    """Of one pair; handed to one plan after the other, which refine it in place."""

    rates: dict[int, Rate] = field(default_factory=dict)
    """lambda, by slots in a pass."""
    answer: float = _USUAL_ANSWER
    """Tokens of an answer, usually."""
    free: float = 0.0
    """Tokens a pass that drafts without cost usually are worth by the end of an answer, over sending nothing."""
    retry: Backoff = field(default_factory=lambda: Backoff(_FIRST_RETRY, _RETRY_GROWTH, _LAST_RETRY))
    """Of drafts that seem to pay, where the guard would send nothing any more."""
    turns: dict[str, Turn] = field(default_factory=dict)
    """By drafter."""

    def rate(self, slots: int) -> Rate:
        """Of passes of so many slots."""
        return self.rates.setdefault(slots, Rate())

    def turn(self, drafter: str) -> Turn:
        """Of the drafter of that name."""
        return self.turns.setdefault(drafter, Turn())

    def ended(self, tokens: int, free: float) -> None:
        """An answer of so many tokens is over, at whose end drafts without cost were worth that much."""
        self.answer += _ANSWER_SHARE * (tokens - self.answer)
        self.free += _FREE_SHARE * (free - self.free)
