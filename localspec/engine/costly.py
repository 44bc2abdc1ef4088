"""A drafter whose guesses cost something: what it promises, when it is asked, what it may read (see `adaptive`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from localspec.engine.costs import DraftCosts
from localspec.engine.guard import Account, Investment
from localspec.engine.interfaces import ANY_PRICE, Drafter, Price
from localspec.engine.option import NEVER, Option, best_choice, depth_of, promised
from localspec.engine.price import DraftPrice
from localspec.engine.situation import Situation
from localspec.errors import DecodeError

_FIRST_WAIT, _WAIT_GROWTH, _LONGEST_WAIT = 8, 1.15, 4096.0
_HOPE = 2.0
"""Standard errors by which a drafter may be better than it seems."""
_HOPELESS_SHARE = 0.003
"""Of plain decoding's time, what trying may take of a drafter that never paid, by all that is known."""
_BURST = 3
"""Probes in a row whose guess was right: the content has changed."""
_FADING = 2.0
"""Waits over which what was learned of a request fades while a drafter is not asked."""
_EVIDENCE, _MUCH_EVIDENCE = 32.0, 128.0
"""Trials from which on acceptance counts as known, or known well enough to stop trying at a close call."""
_PAY_BACK = 1.5
_SMALL_READING = 0.5
"""Reading that costs at most this much of a plain pass is no investment."""
_STAY = 8.0
"""Passes that share the price of a small reading: who is asked once is asked again."""
_FEWEST_LEFT = 16.0


@dataclass(slots=True)
class Offer:
    """What a drafter promises before it has guessed."""

    value: float
    """Tokens a pass over sending nothing, at lambda; small readings charged, investments not."""
    tokens: float
    """Expected a pass and slot, the target's own included."""
    level_seconds: float
    reading: float
    """Seconds it must read first."""
    missing: int
    """Tokens of that."""
    small: bool
    """The reading is no investment."""
    charged: list[float | None]
    """Seconds by nodes, the levels drawn for them included."""


class Costly:
    """One such drafter."""

    def __init__(self, index: int, drafter: Drafter, costs: DraftCosts, clock: Callable[[], float]) -> None:
        self.index, self.drafter, self.costs = index, drafter, costs
        self.investment = Investment()
        self.dropped = ""
        """Why it is not asked any more."""
        self._clock = clock
        self._idle = 0
        """Passes since it was asked last."""
        self._wait = float(_FIRST_WAIT)
        """Passes it is left alone before it is tried again."""
        self._burst = 0

    def rest(self, now: Situation) -> None:
        """One more pass has begun since it was asked."""
        self._idle += 1
        for served in now.served:
            served.trackers[self.index].fade(1.0 / (_FADING * self._wait))

    def offer(self, now: Situation) -> Offer:
        """What it promises for this pass, beside what is ready."""
        active, limit, index = now.active, now.limit, self.index
        if not self.costs.levels.known:
            self.costs = _unmeasured(now.plain_seconds, active)
        missing = sum(self.drafter.missing(request.slot, request.history) for request in now.requests)
        reading = self.costs.reading(missing, active)
        level = self.costs.level_seconds(active, now.length)
        trackers = [served.trackers[index] for served in now.served]
        breadth = trackers[0].table.breadth
        charged = [
            None if price is None else price + (nodes / breadth * level) for nodes, price in enumerate(now.prices)
        ]
        options = [
            [*ready, Option(promised(tracker.typical(limit), breadth, limit))]
            for tracker, ready in zip(trackers, now.ready, strict=True)
        ]
        best = best_choice(options, charged, now.rate, NEVER, now.only)
        small = reading <= _SMALL_READING * now.plain_seconds
        value = best.value - (now.rate * reading / _STAY if small else 0.0)
        tokens = 1.0 + sum(pick.gain(best.nodes) for pick in best.picks if pick) / active
        return Offer(value, tokens, level, reading, missing, small, charged)

    def due(self, offer: Offer, now: Situation, account: Account) -> bool:
        """Whether it is tried although it does not seem to pay."""
        cost = offer.level_seconds + offer.reading
        if not account.affords(cost):
            return False
        trackers = [served.trackers[self.index] for served in now.served]
        trials = min(tracker.table.trials for tracker in trackers)
        if trials < _EVIDENCE:
            return True  # at once, while it has little to catch up with
        resting = self._idle < _FIRST_WAIT or self._idle % _FIRST_WAIT
        if resting and trials >= _MUCH_EVIDENCE:
            return False
        limit = now.limit
        if not self._pays([tracker.usual(limit, _HOPE) for tracker in trackers], offer, now):
            return not resting and cost <= _HOPELESS_SHARE * self._idle * now.plain_seconds
        if trials < _MUCH_EVIDENCE:
            return True
        return self._idle >= self._wait or self._pays(
            [tracker.typical(limit, _HOPE) for tracker in trackers], offer, now
        )

    def _pays(self, typical: list[list[float]], offer: Offer, now: Situation) -> bool:
        """Whether it would pay with this acceptance by level, per slot."""
        breadth = now.served[0].trackers[self.index].table.breadth
        options = [[Option(promised(one, breadth, now.limit))] for one in typical]
        return best_choice(options, offer.charged, now.rate).value > 0.0

    def may_read(self, offer: Offer, gain: float, now: Situation, account: Account, usual_answer: float) -> bool:
        """Whether what it has to read first is small, or can be afforded, or pays for itself.

        Args:
            offer: of this pass.
            gain: tokens a pass over what could be sent without it.
            now: the pass.
            account: what may be lost.
            usual_answer: tokens of an answer.
        """
        if offer.small or account.affords(offer.reading):
            return True
        if min(served.trackers[self.index].table.trials for served in now.served) < _EVIDENCE:
            return False
        left = 0.0
        for served, request in zip(now.served, now.requests, strict=True):
            expected = max(usual_answer - served.generated, served.generated, _FEWEST_LEFT)
            left += min(float(request.room), expected)
        passes = left / (now.active * offer.tokens)
        return gain / now.rate * passes >= _PAY_BACK * self.investment.patience * offer.reading

    def ask(self, offer: Offer, now: Situation, probing: bool) -> None:
        """Lets it guess; its drafts join what is ready. If it fails it is dropped, and the chat goes on."""
        limit = max((nodes for nodes, price in enumerate(now.prices) if price is not None), default=0)
        limit = min(limit, 1) if probing else now.only or limit
        active, wanted = now.active, []
        shares = [None if price is None else price / active for price in now.prices]
        for request, served in zip(now.requests, now.served, strict=True):
            nodes, tracker = max(0, min(limit, request.max_nodes)), served.trackers[self.index]
            price: Price = ANY_PRICE
            if not (probing or now.only):
                level = offer.level_seconds / active
                price = DraftPrice(now.rate, shares, level, tracker.probability, tracker.typical(limit))
            wanted.append(replace(request, max_nodes=nodes, max_depth=nodes, price=price))
        start = self._clock()
        try:
            drafts = self.drafter.draft(wanted)
        except (DecodeError, MemoryError) as error:
            self.drop(str(error) or "out of memory")
            return
        now.draft_seconds = self._clock() - start
        now.asked, now.probing, self._idle = self.index, probing, 0
        if not (offer.small or probing):
            now.invested = min(offer.reading, now.draft_seconds)
            self.investment.invest(now.invested)
        levels = 0
        for served, ready, draft in zip(now.served, now.ready, drafts, strict=True):
            if len(draft):
                tracker, depth = served.trackers[self.index], depth_of(draft)
                tracker.table.saw_breadth(len(draft) / depth)
                served.drawn[self.index] = draft
                ready.append(Option(tracker.gains(draft), draft))
                levels = max(levels, depth)
        self.costs.observe(levels, offer.missing, active, now.length, now.draft_seconds)

    def heard(self, now: Situation, hit: bool) -> None:
        """The pass it was asked for is over; `hit`: its first guess was right for some slot."""
        if not now.probing:
            self._wait, self._burst = max(float(_FIRST_WAIT), self._wait / _WAIT_GROWTH), 0
        elif not hit:
            self._wait = self._wait if self._burst else min(_LONGEST_WAIT, _WAIT_GROWTH * self._wait)
            self._burst = 0
        else:
            self._burst += 1
            self._idle = _FIRST_WAIT * math.ceil(self._wait / _FIRST_WAIT) - 1  # at once again
            if self._burst == _BURST:
                self._burst = 0
                for served in now.served:
                    served.trackers[self.index].fade(1.0)

    def drop(self, reason: str) -> None:
        """Never asks it again, and lets it free what it holds."""
        if not self.dropped:
            self.dropped = reason
            self.drafter.close()


def _unmeasured(pass_seconds: float, slots: int) -> DraftCosts:
    """A cautious guess about a drafter nobody has timed, by what a plain pass costs."""
    pass_seconds = max(pass_seconds, 1e-6)
    return DraftCosts({0: {slots: 0.2 * pass_seconds}}, 0.04 * pass_seconds, slots)
