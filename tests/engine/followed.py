"""A routine that is followed, without a plan around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.engine.acceptance import Table, Tracker
from localspec.engine.costs import PassCosts
from localspec.engine.guard import Account
from localspec.engine.habits import Habits
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Outcome, Verdict
from localspec.engine.option import best_choice
from localspec.engine.plan import Review
from localspec.engine.routine import Routines
from localspec.engine.shadow import Shadow
from localspec.engine.shadow import ask as ask_all
from localspec.engine.situation import Served, Situation, prices
from localspec.types import LogitRows, Noise, SamplingParams
from tests.engine.simulator import TARGET, Clock, Guesser, Process
from tests.fakes import FakeDrafter

PLAIN = 0.001
ROW = [1.0 + 0.05 * more for more in range(15)]
"""Plain passes by width, from 1 on."""


class Followed:
    """Routines of one drafter that has been right, and a request."""

    def __init__(
        self,
        most: int = 32,
        longest: int = 15,
        exact: frozenset[int] | None = None,
        row: Sequence[float] = ROW,
        asking: float = 1e-5,
    ) -> None:
        self.guesser = Guesser("good", Process.of(np.full(600, 0.95), 0, spread=0.0), Clock())
        self.account, self.habits, self.clock = Account(), Habits(), Clock()
        self.account.scale(PLAIN)
        self.account.begin()
        self.shadow = Shadow(0, self.guesser, self.clock)
        self.shadow.attention.seconds = asking
        self.costs = PassCosts({20: {width: PLAIN * ratio for width, ratio in enumerate(row, 1)}})
        self.routines = Routines([self.shadow], longest, exact, self.habits, self.account, self.clock)
        self.request = DraftRequest(0, History([1] * 20), most, most, SamplingParams(), Noise(1))
        self.routines.begin(0, self.costs.row(20))
        self.served = Served(self.request.history, 20, [known()])
        self.worth = [self.plan() for _ in range(40)][-1]

    def plan(self) -> float:
        """A pass is planned; what that is worth over the routine."""
        self.served.begin()
        seconds = self.costs.row(20)
        by_nodes = prices(TARGET, [self.request], [1], seconds, len(seconds) - 2, None)
        now = Situation([self.request], [1], [self.served], 20, seconds, by_nodes, 1.0 / PLAIN)
        ask_all([self.shadow], now, 15)
        return self.routines.weighed(now, best_choice(now.ready, now.prices, now.rate))

    @property
    def saves(self) -> list[float]:
        """What each routine is known to save, in plain passes."""
        return [routine.saves / PLAIN for routine in self.habits.routines("good")]

    def guesses(self, nodes: int) -> None:
        """It guesses no more than that from now on."""
        draft = self.guesser.draft

        def shorter(requests: Sequence[DraftRequest]) -> list[Draft]:
            return [one.truncated(nodes) for one in draft(requests)]

        self.guesser.draft = shorter  # type: ignore[method-assign]

    def sent(self, pending: int = 1) -> int:
        """Nodes of the next draft that is not planned."""
        (draft,) = self.routines.draft([self.request], [pending], {0: self.served})
        return len(draft)

    def hear(self, accepted: int, took: float, observing: float = 0.0, pending: int = 1, said: int = 1) -> Review:
        """It is sent, and so much of it is right, in a pass of so many seconds; `said` comes behind it."""
        (draft,) = self.routines.draft([self.request], [pending], {0: self.served})
        return self.end(draft, accepted, took, observing, said)

    def end(self, draft: Draft, accepted: int, took: float, observing: float = 0.0, said: int = 1) -> Review:
        """A pass is over, as `hear` says."""
        self.request.history.append([1] * (accepted + 1))
        verdict = Verdict(np.arange(accepted, dtype=np.int32), said)
        rows = LogitRows.from_matrix(np.zeros((1, 8), np.float32))
        outcome = Outcome(0, self.request.history, draft, verdict, rows)
        return self.routines.learn(Listener(self.clock, observing), [outcome], took, lambda slots, widest: self.costs)


class Listener(FakeDrafter):
    """Takes its time to hear of a pass."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(lambda request: EMPTY_DRAFT)
        self._clock, self._seconds = clock, seconds

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._clock.now += self._seconds


def known() -> Tracker:
    """Of a drafter that is right 19 times in 20."""
    tracker = Tracker(Table())
    for trial in range(200):
        for depth in range(1, 8):
            tracker.table.learn(0.95, depth, trial % 20 > 0)
    return tracker
