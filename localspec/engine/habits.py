"""What a plan has found out about the requests of a pair, besides what passes cost and how often guesses are right.

It belongs to the pair and not to the plan: who drafts may be changed between two requests (`Engine.configure`), and
that makes a new plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.attention import Attention
from localspec.engine.backoff import Backoff
from localspec.engine.guard import USUAL_ANSWER, Investment
from localspec.engine.rebuild import Rebuild

_RATE_MEMORY = 0.98
_FROM_BEFORE, _MOST_BEFORE = 6.0, 1.25
"""Passes that what was reached before is worth when a request begins, and the most it may be over plain decoding:
contents differ, and a rate that this one cannot reach (a text was copied before) would rule out drafts that pay for
half of it. One that is too low costs little."""
_ANSWER_SHARE, _QUIET_SHARE, _COPY_SHARE = 0.2, 0.7, 0.5
"""By how much one answer changes what is usual."""
SHORT_COPY, LONG_COPY = 7, 15
"""Most nodes of drafts without cost when an answer begins, where nothing says that copies are long, and where the last
ones were."""
_FAR = 0.7
"""Of a long copy, how far the first ones of answers must have gone."""
_ROUTINES = 3, SHORT_COPY, LONG_COPY
"""Most nodes of routines ..."""
_ROUTINE_SHARE = 0.05
"""... and by how much one pass changes what they are known to save."""
_MOST_WORTH = 19.0
"""Plannings that one is worth at most: a single find does not keep planning awake, two in a row do."""
_FIRST_RETRY, _RETRY_GROWTH, _LAST_RETRY = 8.0, 1.5, 4096.0
_FIRST_TURN, _TURN_GROWTH, _LAST_TURN = 8.0, 1.15, 4096.0
_FIRST_ASIDE = 32.0


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

    def begin(self, plain: float) -> None:
        """A request begins, where plain decoding reaches `plain` tokens/s."""
        self._fade(min(1.0, _FROM_BEFORE / self._passes) if self._passes else 1.0)
        self.tokens = min(self.tokens, _MOST_BEFORE * plain * self.seconds)

    def book(self, tokens: float, seconds: float, passes: int = 1) -> None:
        """A pass, or several and each its share, brought so many tokens in so many seconds."""
        kept = _RATE_MEMORY**passes
        weight = (1.0 - kept) / (1.0 - _RATE_MEMORY) / passes  # the first of several have faded
        self._fade(kept)
        self.tokens += weight * tokens
        self.seconds += weight * seconds
        self._passes += weight * passes

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
class Routine:
    """Sending the guesses of one drafter without cost in every pass (see `routine`)."""

    nodes: int
    """The most of a guess."""
    saves: float = 0.0
    """Seconds a pass over plain decoding, lately; what asking for the guess takes is not taken off."""
    asking: float = 0.0
    """Seconds that takes, scoring included; 0 = not known."""

    @property
    def worth(self) -> float:
        """Seconds a pass that it saves in all; 0 = not known."""
        return self.saves - self.asking if self.asking else 0.0

    def saved(self, seconds: float, passes: int = 1) -> None:
        """So much in a pass, or in each of several."""
        self.saves += (1.0 - (1.0 - _ROUTINE_SHARE) ** passes) * (seconds - self.saves)


@dataclass(slots=True)
class Habits:
    """Of one pair; handed to one plan after the other, which refine it in place."""

    rates: dict[int, Rate] = field(default_factory=dict)
    """lambda, by slots in a pass."""
    answer: float = USUAL_ANSWER
    """Tokens of an answer, usually."""
    quiet: float = 0.5
    """Share of the tokens that drafts without cost leave to others (see `Served.heard`), by the end of answers."""
    copies: float = 0.0
    """How far the first copies of answers went, of a long one."""
    retry: Backoff = field(default_factory=lambda: Backoff(_FIRST_RETRY, _RETRY_GROWTH, _LAST_RETRY))
    """Of drafts that seem to pay, where the guard would send nothing any more."""
    aside: Backoff = field(default_factory=lambda: Backoff(_FIRST_ASIDE, _TURN_GROWTH, _LAST_TURN))
    """Of drafters that cost, in the place of one that pays; all of them share it."""
    turns: dict[str, Turn] = field(default_factory=dict)
    """By drafter."""
    planning: Attention = field(default_factory=lambda: Attention(_MOST_WORTH))
    """Whether passes are planned."""
    rebuild: Rebuild = field(default_factory=Rebuild)
    """What a draft costs the plain pass behind it."""
    _routines: dict[str, tuple[Routine, ...]] = field(default_factory=dict)
    """By drafter without cost."""

    def rate(self, slots: int) -> Rate:
        """Of passes of so many slots."""
        return self.rates.setdefault(slots, Rate())

    def turn(self, drafter: str) -> Turn:
        """Of the drafter of that name."""
        return self.turns.setdefault(drafter, Turn())

    def routines(self, drafter: str) -> tuple[Routine, ...]:
        """Of the drafter without cost of that name."""
        return self._routines.setdefault(drafter, tuple(map(Routine, _ROUTINES)))

    @property
    def first_copy(self) -> int:
        """Most nodes of drafts without cost, when an answer begins."""
        return LONG_COPY if self.copies >= _FAR else SHORT_COPY

    def ended(self, tokens: int, quiet: float, copied: int | None) -> None:
        """An answer is over.

        Args:
            tokens: of it.
            quiet: share of it that drafts without cost left to others.
            copied: tokens of its first copy; None = not known (see `Served.copied`).
        """
        self.answer += _ANSWER_SHARE * (tokens - self.answer)
        self.quiet += _QUIET_SHARE * (quiet - self.quiet)
        if copied is not None:
            self.copies += _COPY_SHARE * (min(1.0, copied / LONG_COPY) - self.copies)
