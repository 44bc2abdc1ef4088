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
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, Drafter, DraftRequest, Outcome
from localspec.engine.option import Choice, depth_of
from localspec.engine.plan import NO_REVIEW, Review
from localspec.engine.shadow import Shadow
from localspec.engine.situation import Served, Situation


@dataclass(frozen=True, slots=True)
class Unplanned:
    """A pass for which nobody may draft, or where planning rests."""

    active: int
    """Slots."""
    rows: int
    single: bool
    """They surely are one pass; rows that wait may be decoded one by one, where nothing is drafted."""
    length: int
    """Mean cached length."""
    served: Mapping[int, Served]
    """Its requests by slot, where planning rests; empty = nobody may draft, and the guard has no say."""
    followed: tuple[Shadow, Routine] | None
    seconds: float
    """That guessing took."""


class Routines:
    """All of them, and the one that is followed."""

    def __init__(
        self,
        guessers: Sequence[Shadow],
        longest: int,
        exact: frozenset[int] | None,
        habits: Habits,
        account: Account,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            guessers: drafters without cost.
            longest: longest draft.
            exact: widths a pass may have; None = any.
            habits: what their routines have saved; followed.
            account: what may be lost; followed.
            clock: seconds, for what guesses take.
        """
        self._all = [(one, routine) for one in guessers for routine in habits.routines(one.drafter.name)]
        self._longest, self._exact = longest, exact
        self._habits, self._account, self._clock = habits, account, clock
        self.unplanned: Unplanned | None = None
        """The coming pass; None = a plan is made for it, be it a fixed one."""
        self._followed: tuple[Shadow, Routine] | None = None
        self._rows: dict[int, list[float]] = {}
        """Seconds by width of passes of that slot alone, when its request began or was planned for last."""

    def begin(self, slot: int, row: list[float]) -> None:
        """A request begins, whose passes cost so much by width."""
        self._rows[slot] = row

    def weighed(self, now: Situation, best: Choice) -> float:
        """It is known what all of them would have saved in a pass that was planned.

        Args:
            now: the pass.
            best: what is sent.

        Returns:
            seconds that this saves over what the routine would have saved that was followed up to now.
        """
        if now.active > 1 or now.forcing or now.rate <= 0.0:
            return now.saves(best)
        self._rows[now.requests[0].slot] = now.row
        usually = self._usually(now)
        self._followed, top = None, 0.0
        for guesser, routine in self._all:
            routine.asking = guesser.attention.seconds or routine.asking
            if guesser.asked:
                routine.saved(guesser.saves(now, routine.nodes))
            if routine.worth > top:
                self._followed, top = (guesser, routine), routine.worth
        return now.saves(best) - usually

    def _usually(self, now: Situation) -> float:
        """Seconds that the routine would have saved that was followed up to now: nothing where it could not be sent."""
        if self._followed is None or not self._followed[0].asked:
            return 0.0
        guesser, routine = self._followed
        allowed = self._allowed(guesser, routine, now.requests[0], now.pending[0], now.served[0])
        return guesser.saves(now, allowed[-1]) - routine.asking if allowed else 0.0

    def draft(
        self, requests: Sequence[DraftRequest], pending: Sequence[int], served: Mapping[int, Served]
    ) -> list[Draft]:
        """What is sent in a pass that is not planned.

        Args:
            requests: that share it.
            pending: rows each of them must decode anyway.
            served: see `Unplanned`.
        """
        drafts, seconds = [EMPTY_DRAFT] * len(requests), 0.0
        for one in served.values():
            one.begin()
        followed = None
        if self._followed is not None and len(served) == 1:
            started = self._clock()
            allowed = self._allowed(*self._followed, requests[0], pending[0], served[requests[0].slot])
            if allowed:
                followed = self._followed
                drafts = [self._guess(followed[0].drafter, requests[0], allowed)]
                seconds = self._clock() - started
        drafted, waiting = sum(map(len, drafts)), sum(pending)
        length = sum(len(one.history) for one in requests) // len(requests)
        single = drafted > 0 or waiting == len(requests)
        self.unplanned = Unplanned(len(requests), waiting + drafted, single, length, served, followed, seconds)
        return drafts

    def _allowed(
        self, guesser: Shadow, routine: Routine, request: DraftRequest, pending: int, served: Served
    ) -> list[int]:
        """Numbers of nodes that may be sent of its guess, the fewest first."""
        row, room = self._rows[request.slot], self._account.unproven
        if room <= 0.0 or not request.allows(guesser.drafter.name):
            return []
        most = row[1] + room
        longest = min(
            self._longest, routine.nodes, served.longest[guesser.index], request.max_nodes, len(row) - 1 - pending
        )
        return [
            nodes
            for nodes in range(1, longest + 1)
            if row[pending + nodes] < most and (self._exact is None or pending + nodes in self._exact)
        ]

    def _guess(self, drafter: Drafter, request: DraftRequest, allowed: list[int]) -> Draft:
        asked = [replace(request, max_nodes=allowed[-1], max_depth=allowed[-1])]
        (draft,) = legal(asked, drafter.draft(asked))
        return draft.truncated(max((nodes for nodes in allowed if nodes <= len(draft)), default=0))

    def learn(
        self,
        drafter: Drafter,
        outcomes: Sequence[Outcome],
        seconds: float,
        costs_of: Callable[[int, int], PassCosts],
    ) -> Review:
        """A pass is over that was not planned. Where nobody could draft the guard had no say.

        Args:
            drafter: all of them as one, who hear of it.
            outcomes: what came of it.
            seconds: it took, drafting not included.
            costs_of: (slots, widest pass) -> what passes cost.
        """
        one = self.unplanned
        observing = self._observe(drafter, outcomes, one is not None and one.followed is not None)
        if one is None:
            return NO_REVIEW
        costs = costs_of(one.active, one.rows)
        single = one.single or self._exact is None or one.rows in self._exact
        expected = costs.seconds(one.rows, one.length) if single else one.rows * costs.seconds(1, one.length)
        if one.single:
            costs.observe(one.rows, one.length, seconds)
        plain = costs.seconds(one.active, one.length)
        if one.served and outcomes:
            tokens = sum(self._heard(one, outcome, plain, expected) for outcome in outcomes)
            spent = usual(seconds, expected) if one.rows > one.active else tokens / one.active * plain
            if one.followed is not None:
                spent += one.seconds + observing
                self._habits.rate(1).book(tokens, spent)
            self._account.book(tokens / one.active * plain, spent)
        return Review(plain)

    def _observe(self, drafter: Drafter, outcomes: Sequence[Outcome], timed: bool) -> float:
        """Drafters hear of a pass; returns what that took, where somebody guessed for it."""
        if not timed:
            drafter.observe(outcomes)
            return 0.0
        started = self._clock()
        drafter.observe(outcomes)
        return self._clock() - started

    def _heard(self, one: Unplanned, outcome: Outcome, plain: float, expected: float) -> int:
        """What came of a request's part; returns how many tokens.

        What its guess brought counts as what plain decoding would have taken for it, more than a plan gives for it
        (`Situation.rate`): who is followed stays so until another is clearly better.
        """
        served, draft = one.served[outcome.slot], outcome.draft
        tokens = len(outcome.history) - served.length
        levels, accepted = depth_of(draft), len(outcome.verdict.accepted)
        served.said(tokens)
        served.sent(levels, accepted)
        if one.followed is not None:
            guesser, routine = one.followed
            if levels:
                served.judged(guesser.index, levels, accepted)
            routine.saved(accepted * plain - max(0.0, expected - plain))
        return tokens
