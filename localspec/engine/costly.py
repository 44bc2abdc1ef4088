"""A drafter whose guesses cost something: what it promises, when it is asked, what it may read (see `adaptive`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from localspec.engine.acceptance import Tracker
from localspec.engine.backoff import Backoff
from localspec.engine.constraint import legal
from localspec.engine.costs import DraftCosts
from localspec.engine.graft import grafted
from localspec.engine.guard import Account
from localspec.engine.habits import Turn
from localspec.engine.interfaces import ANY_PRICE, Drafter, OnePass
from localspec.engine.offer import Offer
from localspec.engine.option import NEVER, Choice, Option, best_choice, depth_of, promised
from localspec.engine.price import DraftPrice
from localspec.engine.situation import Situation
from localspec.errors import DecodeError

_OFFER_WAIT = 8
"""Passes until one that promised nothing is asked again what it promises, or tried."""
_OPTIMISM, _RIVAL_OPTIMISM = 0.5, 1.0
"""Standard errors by which a drafter is taken to be better than it seems: what is not known is worth trying. One of
several is tried more seldom, while another one pays."""
_HOPE = 2.0
"""Standard errors by which it may be better."""
_HOPELESS_SHARE, _HOPEFUL_SHARE = 0.006, 0.01
"""Of plain decoding's time, what trying may take of a drafter that never paid, by all that is known, and of one that
pays at other times and has a prompt to read first."""
_BURST = 3
"""Probes in a row whose guess was right: the content has changed."""
_PROBES = 4
"""Probes one behind the other, where a prompt had to be read for the first one."""
_FADING = 2.0
"""Waits over which what was learned of a request fades while a drafter is not asked."""
_EVIDENCE, _MUCH_EVIDENCE = 32.0, 128.0
"""Trials from which on acceptance counts as known, or known well enough to stop trying at a close call."""
_HOPED = 0.9
"""Acceptance that a drafter nobody knows may have."""
_PAY_BACK = 1.5
"""How many times over a reading must promise to pay back."""
_SMALL_READING = 0.9
"""Reading that costs at most this much of a plain pass is no investment: a short prompt, a chat's next question."""
_SPREAD = ((-(3.0**0.5), 1.0 / 6.0), (0.0, 2.0 / 3.0), (3.0**0.5, 1.0 / 6.0))
"""Standard deviations by which a request may differ, and how likely that is (Gauss and Hermite's three points)."""
_STALL, _STALLS = 2.0, (64.0, 2.0, 4096.0)
"""Plain passes over what was expected, as which a draft is booked that took longer: stalls are nobody's fault. They are
rare: passes from one to the next, at first, growth, at last; what comes sooner is what it costs."""
_STAY = 8.0
"""Passes that share the price of a small reading, if there will be so many: who is asked once is asked again."""
_MUCH = 0.35
"""Tokens a pass: who may bring that is worth all that may be spent on trials."""
_FEWEST_LEFT, _LONG_ANSWER = 16.0, 128.0
"""Tokens that are expected at least, and from which on an answer is worth all that may be spent on trials; or any, once
that is as much as it can be."""


class Costly:
    """One such drafter."""

    def __init__(
        self,
        index: int,
        drafter: Drafter,
        costs: DraftCosts,
        turn: Turn,
        longest: int,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            index: among all drafters.
            drafter: who guesses.
            costs: of its guesses; followed from now on.
            turn: when it is tried.
            longest: most nodes of a draft.
            clock: seconds.
        """
        self.longest = longest
        self.index, self.drafter, self.costs = index, drafter, costs
        self.turn, self.investment = turn.backoff, turn.investment
        self.dropped = ""
        """Why it is not asked any more."""
        self._hope: float | None = None
        """See `may_bring`; None = not known for this request."""
        self._clock = clock
        self._one_pass = isinstance(drafter, OnePass) and drafter.one_pass
        self._burst = 0
        self._probes = 0
        """How many more probes the last reading is good for."""
        self._hopeless = 0
        """Passes until it is asked what it promises; it has just promised nothing."""
        self._stalls = Backoff(*_STALLS)

    def rest(self, now: Situation, passes: int) -> None:
        """So many more passes have begun since it was asked."""
        if not self.costs.levels.known:
            self.costs = _unmeasured(now.plain_seconds, now.active)
        self.turn.rest(passes)
        self._stalls.rest(passes)
        self._hopeless = max(0, self._hopeless - passes)
        for served in now.served:
            served.trackers[self.index].fade(min(1.0, passes / (_FADING * self.turn.wait)))

    def begin(self, slot: int) -> float:
        """A request begins; returns what the reading for the one before it in its slot cost and never brought in."""
        self._hopeless = self._burst = self._probes = 0
        self._hope = None
        return self.investment.close(slot)

    def may_guess(self, now: Situation) -> bool:
        """Whether any request lets it."""
        return not self.dropped and bool(now.places(self.drafter.name))

    def may_bring(self, now: Situation) -> float:
        """Tokens a pass over plain decoding at best, were it alone and had it nothing to read: when it was asked for an
        offer last, or as requests usually are.
        """
        if self._hope is None:
            limit = self._limit(now)
            usual = [tracker.usual(limit, _HOPE) for tracker in self._trackers(now)]
            self._hope = self._value(usual, self._charged(now), now)
        return self._hope

    def may_hope(self, now: Situation) -> bool:
        """Whether it can be of use in this pass, as far as is known without asking what it promises. Nobody reads
        most of a pass or longer before drafts without cost had their chance.
        """
        if not self.may_guess(now):
            return False
        if now.forcing:
            return True
        if self._hopeless:
            return False
        if now.settled:
            return True
        return self._is_small(self._reading(self._missing(now)), now)

    @property
    def waited(self) -> float:
        """Passes since it was asked; infinite if its tries go on, as it was right, or has read a prompt for them."""
        return math.inf if self._burst or self._probes else self.turn.idle

    def refused(self) -> None:
        """What it promised was too little."""
        self._hopeless = _OFFER_WAIT

    def offer(self, now: Situation, rivals: bool = False) -> Offer:
        """What it promises for this pass, beside what is ready; asked only where it `may_hope`.

        Args:
            now: the pass.
            rivals: others that cost something may guess, too.
        """
        optimism = _RIVAL_OPTIMISM if rivals else _OPTIMISM
        places, limit = now.places(self.drafter.name), self._limit(now)
        missing = self._missing(now)
        reading = self._reading(missing)
        first = self.costs.level_seconds(len(places), now.length)
        further = self.costs.further_seconds(len(places), now.length)
        trackers = self._trackers(now)
        breadth, charged = trackers[0].table.breadth, self._charged(now)

        def promise(off: float) -> Choice:
            options = [list(ready) for ready in now.ready]
            for place, tracker in zip(places, trackers, strict=True):
                options[place].append(Option(promised(tracker.typical(limit, optimism, off), breadth, limit)))
            return best_choice(options, charged, now.rate, NEVER, min(now.only, limit))

        at_best = self._hope = self._value([tracker.typical(limit, _HOPE) for tracker in trackers], charged, now)
        best, small = promise(0.0), self._is_small(reading, now)
        value = best.value - (now.rate * reading / self._stay(now) if small else 0.0)
        if not (small or now.forcing):  # who finds that this text is not its kind is not asked again
            value = sum(share * max(0.0, promise(off).value) for off, share in _SPREAD)
        tokens = 1.0 + sum(pick.gain(best.nodes) for pick in best.picks if pick) / now.active
        return Offer(value, tokens, at_best, first, further, reading, missing, small, best.nodes, charged)

    def _charged(self, now: Situation) -> list[float | None]:
        """Seconds of the pass by nodes, the levels drawn for them included."""
        slots, breadth = len(now.places(self.drafter.name)), self._trackers(now)[0].table.breadth
        return [
            None if price is None else price + self.costs.seconds(self._paid(nodes / breadth), 0, slots, now.length)
            for nodes, price in enumerate(now.prices[: self._limit(now) + 1])
        ]

    def _paid(self, levels: float) -> float:
        """How many levels a draft costs."""
        return min(1.0, math.ceil(levels)) if self._one_pass else levels

    def _missing(self, now: Situation) -> list[int]:
        """Tokens it would have to read before it can guess, for each of those that let it."""
        asking = [now.requests[place] for place in now.places(self.drafter.name)]
        return [self.drafter.missing(request.slot, request.history) for request in asking]

    def _limit(self, now: Situation) -> int:
        """Most nodes a slot may send of it."""
        return min(self.longest, now.limit)

    def _reading(self, missing: list[int]) -> float:
        """Seconds of reading so many tokens for each of them."""
        return self.costs.reading(sum(missing), len(missing))

    def _is_small(self, reading: float, now: Situation) -> bool:
        return reading <= _SMALL_READING * now.plain_seconds

    def _stay(self, now: Situation) -> float:
        """Passes that share the price of a small reading."""
        room = max(now.requests[place].room for place in now.places(self.drafter.name))
        return max(1.0, min(_STAY, room - 1.0))  # the last token needs no draft

    def _trackers(self, now: Situation) -> list[Tracker]:
        """Of the requests that let it guess, at least one."""
        return [now.served[place].trackers[self.index] for place in now.places(self.drafter.name)]

    def _trials(self, now: Situation) -> float:
        """How much is known of it."""
        return min(tracker.table.trials for tracker in self._trackers(now))

    def due(self, offer: Offer, now: Situation, account: Account) -> bool:
        """Whether it is tried although it does not seem to pay."""
        cost = offer.first_seconds + offer.reading
        if not account.affords(cost):
            return False
        trackers, limit = self._trackers(now), self._limit(now)
        hoped = self._value([[_HOPED] * limit] * len(trackers), offer.charged, now)
        if not self._affords(cost, hoped, now, account):
            return False
        trials = self._trials(now)
        if trials < _EVIDENCE:
            return True  # soon, while it has little to catch up with
        if self._value([tracker.usual(limit, _HOPE) for tracker in trackers], offer.charged, now) <= 0.0:
            return self._cheap(cost, _HOPELESS_SHARE, now) and self.turn.idle >= _OFFER_WAIT
        if not offer.small and not self._cheap(self.investment.patience * cost, _HOPEFUL_SHARE, now):
            return False
        if trials < _MUCH_EVIDENCE:
            return True
        if self.turn.idle < _OFFER_WAIT:
            return False
        return self.turn.due or offer.at_best > 0.0

    def may_replace(self, offer: Offer, now: Situation) -> bool:
        """Whether it may be tried in the place of another that pays: that costs little for the time since the last try,
        or its tries go on.
        """
        goes_on = offer.small and self.waited == math.inf
        return goes_on or self._cheap(offer.first_seconds + offer.reading, _HOPEFUL_SHARE, now)

    def _affords(self, cost: float, hoped: float, now: Situation, account: Account) -> bool:
        """Whether a trial may cost so much, where so many tokens a pass are hoped for: the less there is to be gained,
        the less is spent on finding out.
        """
        enough = min(_LONG_ANSWER, account.tokens) if account.full else _LONG_ANSWER
        worth = min(1.0, hoped / _MUCH) * min(1.0, self._left(now, account.tokens) / enough)
        return worth > 0.0 and account.affords(cost / worth)

    def _cheap(self, cost: float, share: float, now: Situation) -> bool:
        """Whether trying costs no more than this share of plain decoding's time since it was tried last."""
        return cost <= share * self.turn.idle * now.plain_seconds

    def _value(self, typical: list[list[float]], charged: list[float | None], now: Situation) -> float:
        """Tokens a pass over plain decoding that it would bring with this acceptance by level, per slot."""
        breadth = self._trackers(now)[0].table.breadth
        options = [[Option(promised(one, breadth, self._limit(now)))] for one in typical]
        return best_choice(options, charged, now.rate).value

    def may_read(self, offer: Offer, gain: float, now: Situation, account: Account, usual_answer: float) -> bool:
        """Whether what it has to read first is small, or pays for itself in the passes that drafts without cost leave;
        as long as little is known of it, it must be affordable, too, and so must the draft that is thought to be best.

        Args:
            offer: of this pass.
            gain: tokens a pass over what could be sent without it.
            now: the pass.
            account: what may be lost.
            usual_answer: tokens of an answer.
        """
        if offer.small:
            return True
        known = self._trials(now) >= _EVIDENCE
        if not known and (offer.charged[offer.nodes] or 0.0) > now.most:
            return False
        if not (known or self._affords(offer.reading, gain, now, account)):
            return False
        passes = now.quiet * self._left(now, usual_answer) / offer.tokens
        return gain / now.rate * passes >= _PAY_BACK * self.investment.patience * offer.reading

    def _left(self, now: Situation, usual_answer: float) -> float:
        """Tokens still expected of a request that lets it guess."""
        left, places = 0.0, now.places(self.drafter.name)
        for place in places:
            generated = now.served[place].generated
            expected = max(usual_answer - generated, generated, _FEWEST_LEFT)
            left += min(float(now.requests[place].room), expected)
        return left / len(places)

    def ask(self, offer: Offer, now: Situation, probing: bool) -> None:
        """Lets it guess; its drafts join what is ready. If it fails it is dropped, and the chat goes on. Where no draft
        of it could be sent, were it wrong, it waits, and so do those that are only tried.
        """
        most = now.most - (offer.reading if offer.small else 0.0)  # another is a loan
        limit = max(
            (nodes for nodes, price in enumerate(offer.charged) if price is not None and price <= most), default=0
        )
        limit = 1 if probing else now.only or limit
        if not limit:
            return
        places, trackers = now.places(self.drafter.name), self._trackers(now)
        shares = [None if price is None else price / now.active for price in now.affordable]
        wanted = []
        for place, tracker in zip(places, trackers, strict=True):
            request = now.requests[place]
            nodes, price = max(0, min(limit, request.max_nodes)), ANY_PRICE
            if not (probing or now.only):
                level = 0.0 if self._one_pass else offer.level_seconds / len(places)
                price = DraftPrice(now.rate, shares, level, tracker.probability, tracker.typical(limit))
            wanted.append(replace(request, max_nodes=nodes, max_depth=nodes, price=price))
        start = self._clock()
        try:
            drafts = legal(wanted, self.drafter.draft(wanted))
        except (DecodeError, MemoryError) as error:
            self.drop(str(error) or "out of memory")
            return
        now.draft_seconds = self._clock() - start
        now.asked, now.probing, self.turn.idle, self._hopeless = self.index, probing, 0, 0
        if probing and not offer.small:
            self._probes = _PROBES
        if not (offer.small or probing):
            now.invested = min(offer.reading, now.draft_seconds)
            for place, missing in zip(places, offer.missing, strict=True):
                share = missing / sum(offer.missing)
                self.investment.invest(now.requests[place].slot, share * now.invested)
        levels = 0
        for place, tracker, draft in zip(places, trackers, drafts, strict=True):
            if len(draft):
                depth = depth_of(draft)
                tracker.table.saw_breadth(len(draft) / depth)
                now.served[place].drawn[self.index] = draft
                option = Option(tracker.gains(draft, now.again), draft)
                now.ready[place] += [option] if probing else [option, *grafted(option, tracker, now, place)]
                levels = max(levels, depth)
        self._took(levels, offer, now)

    def _took(self, levels: int, offer: Offer, now: Situation) -> None:
        """Learns what a draft of so many levels took, and says what is booked of it: not all of a stall."""
        paid, slots, missing = int(self._paid(levels)), len(offer.missing), sum(offer.missing)
        seconds = now.draft_seconds
        most = self.costs.seconds(paid, missing, slots, now.length) + _STALL * now.plain_seconds
        now.booked = most if seconds > most and self._stalls.again() else seconds
        unread = 0 if levels else sum(self._missing(now))
        now.unread = not levels and unread < missing
        self.costs.observe(paid, missing - unread, slots, now.length, seconds)

    def repay(self, now: Situation, saved: float) -> float:
        """The pass it was asked for saved (or lost) so much; returns what is left of it when readings are paid back."""
        slots = [now.requests[place].slot for place in now.places(self.drafter.name)]
        return self.investment.repay(slots, saved)

    def heard(self, now: Situation, hit: bool) -> None:
        """The pass it was asked for is over; `hit`: its first guess was right for some slot."""
        if now.unread:
            self._at_once()
        elif not now.probing:
            self.turn.paid()
            self._burst = 0
        elif not hit:
            self._probes = max(0, self._probes - 1)
            if self._probes:
                self._at_once()
            elif not self._burst:
                self.turn.failed()
            self._burst = 0
        else:
            self._burst += 1
            self._at_once()
            if self._burst == _BURST:
                self._burst = 0
                for served in now.served:
                    served.trackers[self.index].fade(1.0)

    def _at_once(self) -> None:
        """The next pass is its turn again."""
        self.turn.idle = math.ceil(self.turn.wait) - 1

    def drop(self, reason: str) -> None:
        """Never asks it again, and lets it free what it holds."""
        if not self.dropped:
            self.dropped = reason
            self.drafter.close()


def _unmeasured(pass_seconds: float, slots: int) -> DraftCosts:
    """A guess about a drafter nobody has timed, by what a plain pass costs: a head of a layer or two."""
    pass_seconds = max(pass_seconds, 1e-6)
    return DraftCosts({0: {slots: 0.2 * pass_seconds}}, 0.006 * pass_seconds, slots)
