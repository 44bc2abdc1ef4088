"""A pass before any drafter is asked: who takes part, and what it costs by width (see `planning.plan`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.interfaces import DraftRequest, History, Target
from localspec.planning.acceptance import Tracker
from localspec.planning.budget import Budget


@dataclass(slots=True, eq=False)
class Served:
    """A request from its first pass to its last."""

    history: History
    start: int
    """Tokens there were before the first pass."""
    trackers: list[Tracker]
    """Per drafter."""
    budget: Budget = field(default_factory=Budget)
    tries: bool = True
    """A draft that is not worth its price as believed may be tried."""


@dataclass(slots=True)
class Coming:
    """The pass."""

    requests: Sequence[DraftRequest]
    pending: Sequence[int]
    """Rows each slot must decode anyway."""
    served: list[Served]
    lengths: list[int]
    """Tokens of each history."""
    row: list[float]
    """Seconds of a pass by width."""
    prices: list[float]
    """Seconds of this pass by nodes each slot sends; infinity where a width is not allowed."""
    plain: float
    """Seconds of plain decoding: of one pass, or of several where not all slots share one."""
    rate: float
    """Tokens/s that a second is worth."""
    feared: list[float]
    """The same, as much as passes may cost where they are not known well."""
    room: float
    """Seconds that the pass may lose, drafting included: what every answer in it can still afford."""
    forced: bool = False
    """Settings, or a request of the pass, have it draft, paying or not."""

    @property
    def length(self) -> int:
        """Mean cached length."""
        return sum(self.lengths) // len(self.lengths)

    @property
    def active(self) -> int:
        """Slots that share the pass."""
        return len(self.requests)

    @property
    def again(self) -> float:
        """Tokens that a row of the next pass costs, at the rate."""
        widest = len(self.prices)
        if len(self.requests) > 1 or widest < 2:
            return 0.0  # chains only
        return max(0.0, self.rate * (self.row[widest] - self.row[1]) / (widest - 1))

    def places(self, drafter: str) -> list[int]:
        """Indices of the requests that let this drafter guess."""
        return [place for place, one in enumerate(self.requests) if one.allows(drafter) and one.max_nodes > 0]

    def affordable(self, drafting: Sequence[float] = ()) -> list[float]:
        """Prices by nodes, infinity where the pass could lose more than it may.

        Args:
            drafting: seconds that guessing so many nodes takes besides; empty = nothing.
        """
        most = self.prices[0] + self.room
        spent = drafting or [0.0] * len(self.prices)
        every = zip(self.prices, self.feared, spent, strict=False)
        return [
            price if feared + more <= most or not nodes else math.inf
            for nodes, (price, feared, more) in enumerate(every)
        ]

    def left(self, place: int, answer: float) -> float:
        """Tokens that a request is expected to bring still, where answers usually have so many."""
        return min(float(self.requests[place].room), answer - (self.lengths[place] - self.served[place].start))


def plain_seconds(target: Target, requests: Sequence[DraftRequest], row: Sequence[float]) -> float:
    """Seconds of plain decoding for a token of each request, by what passes of each width take."""
    widths = target.pass_widths({one.slot: 1 for one in requests}) if len(requests) > 1 else [1]
    return sum(row[width] for width in widths)


def prices(
    target: Target,
    requests: Sequence[DraftRequest],
    pending: Sequence[int],
    row: Sequence[float],
    limit: int,
    exact: frozenset[int] | None,
) -> list[float]:
    """Seconds of a pass by nodes a slot sends, from 0 to `limit`; infinity where a width is not allowed.

    Args:
        target: says how rows become passes.
        requests: those that share the pass.
        pending: rows each of them must decode anyway.
        row: seconds by width.
        limit: most nodes a slot.
        exact: widths that are allowed, besides those of a pass without drafts; None = any.
    """
    if len(requests) == 1:
        first = pending[0]
        if exact is None:
            return list(row[first : first + limit + 1])
        found = [row[width] if width in exact else math.inf for width in range(first, first + limit + 1)]
        found[0] = row[first] if first in exact else first * row[1]  # rows that wait are decoded one by one
        return found
    found = []
    for nodes in range(limit + 1):
        rows = {
            request.slot: waiting + min(nodes, max(0, request.max_nodes))
            for request, waiting in zip(requests, pending, strict=True)
        }
        widths = target.pass_widths(rows)
        allowed = exact is None or nodes == 0 or all(width in exact for width in widths)
        found.append(sum(row[width] for width in widths) if allowed else math.inf)
    return found
