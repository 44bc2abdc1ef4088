"""A pass while it is planned: who takes part, what every width costs, what could be sent (see `adaptive`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.acceptance import Tracker
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History
from localspec.engine.option import Option


@dataclass(slots=True)
class Served:
    """A request as the plan sees it, from its first pass to its last."""

    history: History
    start: int
    """Tokens there were before the first pass."""
    trackers: list[Tracker]
    """Per drafter."""
    drawn: list[Draft] = field(default_factory=list)
    """Per drafter, its guess for the coming pass."""
    length: int = 0
    """Tokens before the coming pass."""

    @property
    def generated(self) -> int:
        return self.length - self.start

    def begin(self) -> None:
        """A pass is about to be planned."""
        self.length = len(self.history)
        self.drawn = [EMPTY_DRAFT] * len(self.trackers)


@dataclass(slots=True)
class Situation:
    """What is decided about one pass, and what it is decided by."""

    requests: Sequence[DraftRequest]
    pending: Sequence[int]
    """Rows each slot must decode anyway."""
    served: list[Served]
    length: int
    """Mean cached length."""
    row: list[float]
    """Seconds of a pass by width."""
    prices: list[float | None]
    """Seconds of this pass by nodes each slot sends; None where a width is not allowed."""
    rate: float
    """lambda, tokens/s."""
    only: int = 0
    """Forced number of nodes; 0 = none is."""
    forcing: bool = False
    """Settings leave no choice but to draft."""
    ready: list[list[Option]] = field(default_factory=list)
    """Per slot, the drafts that are there."""
    asked: int = -1
    """Index of the drafter that cost something."""
    probing: bool = False
    """It was asked to see how it does, not because it pays."""
    draft_seconds: float = 0.0
    invested: float = 0.0
    """Seconds of these that shall be paid back later."""
    drafted: bool = False
    width: int = 0
    """Of the one pass that will run; 0 = there will be several."""
    expected: float = 0.0
    """Seconds of the pass."""
    guarded: bool = False
    unread: bool = False
    """The drafter that was asked has not read everything yet, and could not guess."""

    @property
    def active(self) -> int:
        return len(self.requests)

    def places(self, name: str) -> list[int]:
        """Indices of the requests that let this drafter guess."""
        return [place for place, request in enumerate(self.requests) if request.allows(name)]

    @property
    def limit(self) -> int:
        """Most nodes a slot may send."""
        return len(self.prices) - 1

    @property
    def plain_seconds(self) -> float:
        """A pass of plain decoding."""
        return self.row[len(self.requests)]
