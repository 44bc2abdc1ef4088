"""What is sent in passes that are not planned: the guess of one drafter without cost, always the same, or nothing.

A plan weighs every guess there is. Where a pass takes a millisecond that is a third of it, and a drafter that is simply
sent in every pass beats the best of plans. So each time a pass is planned it is known what every `Routine` would have
saved there: one drafter without cost, and a length. Passes that are not planned follow the one that has saved most
lately, plain decoding if none has, and a plan is worth its time if it saves more than that one (`attention`). The guard
limits a routine as it limits a plan.

With several slots, passes that are not planned are plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.engine.constraint import legal
from localspec.engine.costs import PassCosts
from localspec.engine.guard import Account, usual
from localspec.engine.habits import Habits, Routine
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, Outcome
from localspec.engine.option import Choice, depth_of
from localspec.engine.plan import NO_REVIEW, Review
from localspec.engine.shadow import Shadow
from localspec.engine.situation import Served, Situation


@dataclass(frozen=True, slots=True)
class Unplanned:
    """A pass for which nobody may draft, or where planning rests."""

    active: int
    """Slots."""
    width: int
    """Rows; 0 = they are decoded one by one, no single pass to learn from."""
    length: int
    """Mean cached length."""
    served: Mapping[int, Served]
    """Its requests by slot, where planning rests; empty = nobody may draft."""
    seconds: float
    """That guessing took."""


class Routines:
    """All of them, and the one that is followed."""

    def __init__(
        self,
        guessers: Sequence[Shadow],
        exact: frozenset[int] | None,
        habits: Habits,
        account: Account,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            guessers: drafters without cost.
            exact: widths a pass may have; None = any.
            habits: what their routines have saved; followed.
            account: what may be lost; followed.
            clock: seconds, for what guesses take.
        """
        self._all = [(one, habits.routines(one.drafter.name)) for one in guessers]
        self._exact, self._habits, self._account, self._clock = exact, habits, account, clock
        self.unplanned: Unplanned | None = None
        """The coming pass; None = it is planned."""
        self._followed: tuple[Shadow, Routine] | None = None
        self._row: list[float] = []
        """Seconds by width, when a pass was planned last."""

    def weighed(self, now: Situation, best: Choice) -> float:
        """It is known what all of them would have saved in a pass that was planned.

        Args:
            now: the pass.
            best: what is sent.

        Returns:
            seconds that this saves over what the routine would have saved that was followed up to now.
        """
        followed, self._followed = self._followed, None
        if now.active > 1 or now.rate <= 0.0:
            return now.saves(best)
        self._row = now.row
        usually = top = 0.0
        for guesser, routines in self._all:
            asking = guesser.attention.seconds
            for routine in routines:
                if not guesser.rests:
                    found = guesser.saves(now, routine.nodes)
                    routine.saved(found)
                    if followed is not None and followed[1] is routine:
                        usually = found - asking
                if routine.saves - asking > top:
                    self._followed, top = (guesser, routine), routine.saves - asking
        return now.saves(best) - usually

    def draft(
        self, requests: Sequence[DraftRequest], pending: Sequence[int], served: Mapping[int, Served]
    ) -> list[Draft]:
        """What is sent in a pass that is not planned.

        Args:
            requests: that share it.
            pending: rows each of them must decode anyway.
            served: see `Unplanned`.
        """
        started, drafts = self._clock(), [EMPTY_DRAFT] * len(requests)
        for one in served.values():
            one.begin()
        if len(served) != 1:
            self._followed = None
        elif self._followed is not None:
            drafts = [self._guess(*self._followed, requests[0], pending[0], served[requests[0].slot])]
        drafted, rows = sum(map(len, drafts)), sum(pending)
        width = rows + drafted if drafted or rows == len(requests) else 0
        length = sum(len(one.history) for one in requests) // len(requests)
        self.unplanned = Unplanned(len(requests), width, length, served, self._clock() - started)
        return drafts

    def _guess(self, guesser: Shadow, routine: Routine, request: DraftRequest, pending: int, served: Served) -> Draft:
        most = self._row[1] + self._account.unproven
        nodes = min(routine.nodes, request.max_nodes, served.longest[guesser.index], len(self._row) - 1 - pending)
        while nodes > 0 and self._row[pending + nodes] >= most:
            nodes -= 1
        if nodes < 1 or not request.allows(guesser.drafter.name):
            return EMPTY_DRAFT
        asked = [replace(request, max_nodes=nodes, max_depth=nodes)]
        (draft,) = legal(asked, guesser.drafter.draft(asked))
        while len(draft) and self._exact is not None and pending + len(draft) not in self._exact:
            draft = draft.truncated(len(draft) - 1)
        return draft

    def learn(self, outcomes: Sequence[Outcome], seconds: float, costs_of: Callable[[int, int], PassCosts]) -> Review:
        """A pass is over that was not planned. Where nobody could draft the guard had no say.

        Args:
            outcomes: what came of it.
            seconds: it took, drafting not included.
            costs_of: (slots, widest pass) -> what passes cost.
        """
        one = self.unplanned
        if one is None or not one.width:
            return NO_REVIEW
        costs = costs_of(one.active, one.width)
        plain, expected = costs.seconds(one.active, one.length), costs.seconds(one.width, one.length)
        costs.observe(one.width, one.length, seconds)
        if one.served and outcomes:
            tokens = sum(self._heard(one.served[outcome.slot], outcome, plain) for outcome in outcomes)
            spent = usual(seconds, expected) if one.width > one.active else plain
            if self._followed is not None:
                spent += one.seconds
                self._habits.rate(1).book(tokens, spent)
            self._account.book(tokens / one.active * plain, spent)
        return Review(plain)

    def _heard(self, served: Served, outcome: Outcome, plain: float) -> int:
        """What came of a request's part; returns how many tokens."""
        tokens, draft = len(outcome.history) - served.length, outcome.draft
        levels, accepted = depth_of(draft), len(outcome.verdict.accepted)
        served.said(tokens)
        served.sent(levels, accepted)
        if self._followed is not None:
            guesser, routine = self._followed
            if levels:
                served.judged(guesser.index, levels, accepted)
            routine.saved(accepted * plain - (self._row[1 + len(draft)] - self._row[1]))
        return tokens
