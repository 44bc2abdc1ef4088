"""A pass before any drafter is asked: who takes part, and what it costs by width (see `planning.plan`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.engine.interfaces import DraftRequest, History, Target
from localspec.planning.acceptance import CONVINCING_STREAK, Tracker
from localspec.planning.budget import Budget
from localspec.planning.weighing import Option


@dataclass(slots=True, eq=False)
class Served:
    """A request from its first pass to its last."""

    history: History
    start: int
    """Number of tokens in the history before the first pass."""
    trackers: list[Tracker]
    """Acceptance in this request, one tracker per drafter."""
    budget: Budget
    promising: bool = False
    """Whether the last pass brought more than one token, or guesses that were not sent are right: a copy goes on."""
    tries: bool = True
    """Whether a draft that is not worth its expected price may still be tried."""

    def heard(self, said: Sequence[int], sent: int) -> None:
        """Learns from the tokens of a pass in which a draft of `sent` nodes was sent."""
        self.budget.heard(said, sent)
        self.promising = (sent > 0 and len(said) > 1) or self.budget.streak >= CONVINCING_STREAK


@dataclass(slots=True)
class Coming:
    """The pass that comes next: the requests that share it, and its cost."""

    requests: Sequence[DraftRequest]
    pending: Sequence[int]
    """For each request, rows that the pass must decode besides drafts."""
    served: list[Served]
    """What is known of each request."""
    lengths: list[int]
    """For each request, number of tokens in its history."""
    row: list[float]
    """Expected seconds of a pass by width (`PassCosts.rows`)."""
    prices: list[float]
    """Expected seconds of this pass by draft nodes per slot; infinity where a width is not allowed."""
    plain: float
    """Seconds in which plain decoding brings each slot one token: one pass, or several if slots do not share one."""
    plain_width: int
    """Rows of that pass; 0 = several."""
    rate: float
    """Tokens a second at the pace of late (`Pace`): a draft must bring more for the seconds that it adds."""
    feared: list[float]
    """Feared seconds of this pass by draft nodes per slot, which `prices` has as expected (`PassCosts.rows`)."""
    room: float
    """Seconds that drafting and the pass together may lose: the answers in the pass share what they may lose."""
    forced: bool = False
    """Settings or a request want a draft in this pass, whether it pays or not."""

    def lend(self) -> None:
        """Lends to answers whose budget covers no draft, and fills in `room`."""
        if self.forced or not self.plain:
            return
        cheapest = self.cheapest
        for one in self.served:
            if one.budget.passes < cheapest:
                one.budget.lend(self.prices, self.plain)
        self.room = sum(max(0.0, one.budget.passes) for one in self.served) / self.active * self.plain

    @property
    def cheapest(self) -> float:
        """Plain passes that the draft which could lose least could lose."""
        return (min(self.feared[1:], default=math.inf) - self.prices[0]) / self.plain

    def open(self, options: list[Option]) -> list[Option]:
        """The options, those of answers whose budget covers no draft without their tokens: one answer's losses close no
        other's slot."""
        if self.forced or self.active == 1:
            return options
        cheapest = self.cheapest
        closed = {place for place, one in enumerate(self.served) if one.budget.passes < cheapest}
        return [Option(one.place, one.tracker) if one.place in closed else one for one in options]

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
        """Cost of one more row in the next pass, in tokens: its seconds times the rate. 0 for several slots."""
        widest = len(self.prices)
        if len(self.requests) > 1 or widest < 2:
            return 0.0  # chains only
        return max(0.0, self.rate * (self.row[widest] - self.row[1]) / (widest - 1))

    def places(self, drafter: str) -> list[int]:
        """Indices of the requests that let this drafter guess."""
        return [place for place, one in enumerate(self.requests) if one.allows(drafter) and one.max_nodes > 0]

    def affordable(self, drafting: Sequence[float] = ()) -> list[float]:
        """Expected seconds by nodes, infinity where the feared seconds exceed the budget, those of `drafting` by nodes
        added; empty = none."""
        most = self.prices[0] + self.room
        spent = drafting or [0.0] * len(self.prices)
        every = zip(self.prices, self.feared, spent, strict=False)
        return [
            price if feared + more <= most or not nodes else math.inf
            for nodes, (price, feared, more) in enumerate(every)
        ]

    def left(self, place: int, answer: float) -> float:
        """Expected number of tokens left in a request, if answers usually have `answer` tokens."""
        return min(float(self.requests[place].room), answer - (self.lengths[place] - self.served[place].start))


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
