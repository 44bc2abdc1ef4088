"""What is sent in passes that are not planned: the guess of one drafter without cost, always the same, or nothing.

A plan weighs every guess there is. Where a pass takes a millisecond that is a third of it, and a drafter that is simply
sent in every pass beats the best of plans. So each time a pass is planned it is known what every `Routine` would have
saved there: one drafter without cost, and a length. Passes that are not planned follow the one that has saved most
lately, plain decoding if none has, and a plan is worth its time if it saves more than that one (`attention`). The guard
limits a routine as it limits a plan.

Most of them send nothing. Where nobody is followed, or the guard lets nobody be, passes are plain, and plain they stay
until planning is due or the guard could think otherwise; where the one that is followed has no guess, until it has one.
In such a `Lull` nothing is decided, and what came of it is heard when it is over.

With several slots, passes that are not planned are plain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from localspec.engine.constraint import legal
from localspec.engine.costs import PassCosts
from localspec.engine.guard import Account, usual
from localspec.engine.habits import Habits, Routine
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, Drafter, DraftRequest, Outcome
from localspec.engine.option import Choice, depth_of
from localspec.engine.plan import NO_REVIEW, Review
from localspec.engine.shadow import Shadow
from localspec.engine.situation import Served, Situation


@dataclass(slots=True)
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
    followed: Followed | None
    seconds: float
    """That guessing took."""


@dataclass(slots=True)
class Followed:
    """A routine in one pass."""

    guesser: Shadow
    routine: Routine
    widths: Widths
    guess: Draft = EMPTY_DRAFT
    """The whole of it, and not only what is sent."""


@dataclass(slots=True)
class Widths:
    """Of a pass that sends a guess."""

    row: Sequence[float]
    """Seconds of a pass by width."""
    pending: int
    """Rows that must be decoded anyway."""
    longest: int
    """Most nodes."""
    exact: frozenset[int] | None
    """Widths a pass may have; None = any."""
    rebuilding: float
    """Seconds that a guess costs a later pass (see `rebuild`)."""

    def affordable(self, loss: float, longest: int | None = None) -> int:
        """Most nodes of a guess, of `longest` if that is fewer, if all of them may be wrong and no more lost."""
        nodes, most = self.longest if longest is None else min(longest, self.longest), self.row[1] + loss
        while nodes > 0 and not (self._fits(nodes) and self.row[self.pending + nodes] < most):
            nodes -= 1
        return nodes if loss > 0.0 else 0

    def extra(self, nodes: int) -> float:
        """Seconds over plain decoding's that so many take, now and in a later pass."""
        return max(0.0, self.row[self.pending + nodes] - self.row[1]) + (self.rebuilding if nodes else 0.0)

    @property
    def least(self) -> float:
        """What any guess may lose; infinite if none may be sent."""
        seconds = [self.row[self.pending + nodes] for nodes in range(1, self.longest + 1) if self._fits(nodes)]
        return min(seconds, default=math.inf) - self.row[1]

    def _fits(self, nodes: int) -> bool:
        return self.exact is None or self.pending + nodes in self.exact


@dataclass(slots=True)
class Lull:
    """Plain passes of one request, alone, one behind the other, that are heard of when they are over."""

    served: Served
    """The request."""
    left: int
    """How many more there may be: then planning is due, or the guard may have changed its mind."""
    listening: bool
    """Whether it ends before that where the drafter that is followed has a guess."""
    passes: int = 0
    """Those that were."""
    asking: float = 0.0
    """Seconds that asking it took."""


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
        self._best: tuple[Shadow, Routine] | None = None
        """That is followed."""
        self._rows: dict[int, list[float]] = {}
        """Seconds by width of passes of that slot alone, when its request began or was planned for last."""
        self._lull: Lull | None = None
        self._guess: Draft | None = None
        """What ended it ..."""
        self._asking = 0.0
        """... and the seconds that took."""

    def begin(self, slot: int, row: list[float]) -> None:
        """A request begins, whose passes cost so much by width."""
        self._rows[slot] = row
        self._habits.rebuild.forget()

    def rebuilt(self, active: int, rows: int, seconds: float, plain: float) -> None:
        """A single pass of so many slots took so long, where plain ones take `plain` seconds."""
        if active == 1:
            self._habits.rebuild.observe(rows, seconds, plain)
        else:
            self._habits.rebuild.forget()

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
        self._best, top = None, 0.0
        for guesser, routine in self._all:
            routine.asking = guesser.attention.seconds or routine.asking
            if guesser.asked:
                routine.saved(guesser.saves(now, routine.nodes))
            if routine.worth > top:
                self._best, top = (guesser, routine), routine.worth
        return now.saves(best) - usually

    def _usually(self, now: Situation) -> float:
        """Seconds that the routine would have saved that was followed up to now: nothing where it could not be sent."""
        if self._best is None or not self._best[0].asked:
            return 0.0
        guesser, routine = self._best
        widths = self._widths(guesser, now.requests[0], now.pending[0], now.served[0])
        nodes = widths.affordable(self._account.unproven, routine.nodes)
        return guesser.saves(now, nodes) - routine.asking if nodes else 0.0

    def planned(self, served: Served) -> None:
        """A pass of that request alone was planned, and is over."""
        self._quieten(served, math.inf, self._best is not None)

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
        if len(served) == 1:
            started = self._clock() - self._asking
            followed, drafts = self._follow(requests[0], pending[0], served[requests[0].slot])
            seconds = self._clock() - started
        drafted, waiting = sum(map(len, drafts)), sum(pending)
        length = sum(len(one.history) for one in requests) // len(requests)
        single = drafted > 0 or waiting == len(requests)
        self.unplanned = Unplanned(len(requests), waiting + drafted, single, length, served, followed, seconds)
        return drafts

    def lulls(self, requests: Sequence[DraftRequest], pending: Sequence[int]) -> bool:
        """Whether a pass of these requests is one more of a lull: it is drafted with nobody served.

        To decide about every pass anew, and to hear of every one, takes 25 us where nobody is followed and 110 us where
        somebody is who has no guess: a thirtieth and a sixth of a pass of a tiny model.
        """
        lull, self._guess, self._asking = self._lull, None, 0.0
        if lull is None:
            return False
        same = len(requests) == 1 and requests[0].history is lull.served.history
        if lull.left > 0 and same and (not lull.listening or self._silent(lull, requests[0], pending[0])):
            lull.left -= 1
            lull.passes += 1
            return True
        self._lull = None
        if lull.passes:
            self._over(lull)
        return False

    def _silent(self, lull: Lull, request: DraftRequest, pending: int) -> bool:
        """Whether the drafter that is followed may be sent and has no guess."""
        if self._best is None:
            return False
        guesser, routine = self._best
        widths = self._widths(guesser, request, pending, lull.served)
        if not widths.affordable(self._account.unproven, routine.nodes):
            return False
        started = self._clock()
        guess = self._ask(guesser, request, widths)
        seconds = self._clock() - started
        if len(guess):
            self._guess, self._asking = guess, seconds
            return False
        self._asked(lull, seconds)
        return True

    def _asked(self, lull: Lull, seconds: float) -> None:
        """To have no guess took so long."""
        lull.asking += seconds
        self._account.book(0.0, seconds)

    def _listened(self, one: Unplanned | None, outcomes: Sequence[Outcome]) -> Lull | None:
        """The lull that a pass was of, if somebody was asked."""
        lull = self._lull
        if one is None or one.served or lull is None or not lull.listening or not outcomes:
            return None
        return lull if outcomes[0].history is lull.served.history else None

    def _over(self, lull: Lull) -> None:
        """What came of it is heard: what was followed saved nothing in all these passes."""
        plain = lull.passes * self._account.pass_seconds
        self._habits.planning.skip(lull.passes)
        self._account.book(plain, plain)
        lull.served.said(lull.passes)
        lull.served.sent(0, 0)
        if lull.listening and self._best is not None:
            self._habits.rate(1).book(lull.passes, plain + lull.asking, lull.passes)
            for routine in self._habits.routines(self._best[0].drafter.name):
                routine.saved(0.0, lull.passes)

    def _quieten(self, one: Served, passes: float, listening: bool = False) -> None:
        """The next pass may be the first of a lull of at most so many."""
        coming = self._habits.planning.coming(self._account.pass_seconds)
        self._lull = Lull(one, max(0, int(min(coming, passes))), listening)

    def _follow(self, request: DraftRequest, pending: int, served: Served) -> tuple[Followed | None, list[Draft]]:
        """What the routine sends; if it may not send anything, this pass is plain and so are others behind it."""
        if self._best is None:
            self._quieten(served, math.inf)
            return None, [EMPTY_DRAFT]
        (guesser, routine), room = self._best, self._account.unproven
        widths = self._widths(guesser, request, pending, served)
        if not widths.affordable(room, routine.nodes):
            self._quieten(served, self._account.passes_until(widths.least) - 1.0)
            return None, [EMPTY_DRAFT]
        guess = self._ask(guesser, request, widths) if self._guess is None else self._guess
        self._quieten(served, math.inf, True)
        sent = guess.truncated(widths.affordable(room, min(routine.nodes, len(guess))))
        return Followed(guesser, routine, widths, guess), [sent]

    def _ask(self, guesser: Shadow, request: DraftRequest, widths: Widths) -> Draft:
        """What it guesses, whatever may be lost."""
        asked = [request.limited(widths.affordable(math.inf))]
        (guess,) = legal(asked, guesser.drafter.draft(asked))
        return guess

    def _widths(self, guesser: Shadow, request: DraftRequest, pending: int, served: Served) -> Widths:
        """What passes cost that send its guess."""
        row = self._rows[request.slot]
        longest = min(self._longest, served.longest[guesser.index], request.max_nodes, len(row) - 1 - pending)
        nodes = max(0, longest) if request.allows(guesser.drafter.name) else 0
        return Widths(row, pending, nodes, self._exact, self._habits.rebuild.due)

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
        lull = self._listened(one, outcomes)
        observing = self._observe(drafter, outcomes, lull is not None or (one is not None and one.followed is not None))
        if one is None:
            return NO_REVIEW
        if lull is not None:
            self._asked(lull, observing)
        costs = costs_of(one.active, one.rows)
        single = one.single or self._exact is None or one.rows in self._exact
        expected = costs.seconds(one.rows, one.length) if single else one.rows * costs.seconds(1, one.length)
        if one.single:
            self.rebuilt(one.active, one.rows, seconds, costs.seconds(one.active, one.length))
            costs.observe(one.rows, one.length, seconds)
        plain = costs.seconds(one.active, one.length)
        if one.served and outcomes:
            tokens = sum(self._heard(one, outcome, plain) for outcome in outcomes)
            spent = usual(seconds, expected) if one.rows > one.active else tokens / one.active * plain
            if one.followed is not None:
                spent += one.seconds + observing + (one.followed.widths.rebuilding if one.rows > one.active else 0.0)
                self._habits.rate(1).book(tokens, spent)
            self._account.book(tokens / one.active * plain, spent)
        return Review(plain, not one.served and lull is None and one.rows == one.active)

    def _observe(self, drafter: Drafter, outcomes: Sequence[Outcome], timed: bool) -> float:
        """Drafters hear of a pass; returns what that took, where somebody guessed for it."""
        if not timed:
            drafter.observe(outcomes)
            return 0.0
        started = self._clock()
        drafter.observe(outcomes)
        return self._clock() - started

    def _heard(self, one: Unplanned, outcome: Outcome, plain: float) -> int:
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
            if levels:
                served.judged(one.followed.guesser.index, levels, accepted)
            self._compare(one.followed, outcome, plain)
        return tokens

    def _compare(self, followed: Followed, outcome: Outcome, plain: float) -> None:
        """What came of a guess is known for all lengths, be they shorter than what was sent or longer: of one that
        was right to its end, for a token more.
        """
        guesser, guess, widths, sent = followed.guesser, followed.guess, followed.widths, len(outcome.draft)
        accepted = goes_on = len(outcome.verdict.accepted)
        chain = depth_of(guess) == len(guess)
        if accepted == sent < len(guess) and int(guess.tokens[sent]) == outcome.verdict.next_token:
            goes_on += 1
        for routine in self._habits.routines(guesser.drafter.name):
            if routine is followed.routine:
                routine.saved(accepted * plain - widths.extra(sent))
            elif chain:
                nodes = widths.affordable(math.inf, min(routine.nodes, len(guess)))
                routine.saved(min(nodes, accepted if nodes <= sent else goes_on) * plain - widths.extra(nodes))
        best = max(self._habits.routines(guesser.drafter.name), key=lambda one: one.worth)
        if best.worth > followed.routine.worth:
            self._best = guesser, best
