"""A drafter that costs something: its promise, what it must read first, when it is probed (see `planning.plan`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.interfaces import Drafter, OnePass
from localspec.planning.acceptance import Tracker
from localspec.planning.coming import Coming
from localspec.planning.draft_costs import DraftCosts
from localspec.planning.learning import IN_A_ROW
from localspec.planning.weighing import Option, weigh

FIRST_WAIT, GROWTH = 8.0, 1.15
"""Passes until a drafter that does not promise enough is probed: at first, and growth after each miss."""
UNTIMED = 0.2
"""Of a plain pass, what a level of a drafter is taken to cost before it was timed: a head of a layer or two."""
UNTIMED_TOKEN = 0.03
"""Of that, what a token it reads is taken to cost."""
HOPE = 0.5
"""Standard errors that a drafter is taken to be better than known: what is not known is worth trying."""
PAY_BACK = 1.5
"""How many times over a reading must be expected to pay back; twice as often after each one that did not."""
EVIDENCE = 32.0
"""Guesses scored, from which on a reading may cost more than the budget holds."""
FEWEST_LEFT = 16.0
"""Tokens that an answer is expected to bring still, at least."""
PROBE_SHARE = 0.006
"""Of plain decoding's time since it was asked last, what a probe may take."""
FORGETTING = 0.5
"""Share of what was learned of a request that is forgotten in the time from one probe to the next."""


@dataclass(slots=True)
class Offer:
    """What a drafter promises for a pass before it has guessed."""

    promise: float
    """Tokens over sending nothing, at the rate, had it nothing to read."""
    value: float
    """The same, its reading charged."""
    reading: float
    """Seconds it must read first."""
    first: float
    """Seconds of the first level, reading included."""
    missing: list[int]
    """Tokens it must read, per place."""
    places: list[int]
    """Of the requests that let it guess."""


@dataclass(slots=True, eq=False)
class Asking:
    """One such drafter."""

    index: int
    """Among all drafters."""
    drafter: Drafter
    costs: DraftCosts
    longest: int
    """Most nodes of its drafts."""
    wait: float = FIRST_WAIT
    idle: float = math.inf
    """Passes since it was asked."""
    ahead: int = 0
    """Passes in a row in which it promised more than what was ready. It may read a prompt after some of them: a copy
    would have begun."""
    hits: int = 0
    """Probes in a row that were right."""
    probes: int = 0
    """How many more probes the last reading is good for."""
    patience: float = 1.0
    """How many times over a reading must promise to pay, besides PAY_BACK."""
    owed: dict[int, float] = field(default_factory=dict)
    """By slot, plain passes of reading that were not paid back yet."""
    one_pass: bool = field(init=False)
    """One pass guesses all levels of a draft."""

    def __post_init__(self) -> None:
        self.one_pass = isinstance(self.drafter, OnePass) and self.drafter.one_pass

    def due(self, offer: Offer, now: Coming) -> bool:
        """Whether it is probed although it does not promise enough: only where its guess could be sent, too."""
        if offer.first > now.room or now.affordable([0.0, offer.first - offer.reading])[1] == math.inf:
            return False
        if self.hits > 0 or self.probes > 0:
            return offer.reading <= now.plain
        if offer.reading > now.plain and self.ahead < IN_A_ROW:
            return False
        return self.idle >= self.wait and offer.first <= PROBE_SHARE * self.idle * now.plain

    def may_read(self, offer: Offer, now: Coming, passes: float) -> bool:
        """Whether it may read what it has to.

        Args:
            offer: what it promises.
            now: the pass.
            passes: plain passes that readings may cost for drafters of which little is known.
        """
        if offer.reading > now.plain and self.ahead < IN_A_ROW:
            return False
        return offer.reading <= max(now.room, passes * now.plain) or self.known(now)

    def paid_levels(self, levels: float) -> float:
        """How many levels a draft of so many costs."""
        return min(1.0, levels) if self.one_pass else levels

    def rest(self, now: Coming) -> None:
        """A pass begins, for which it may be asked or not."""
        self.idle += 1
        for tracker in self.trackers(now):
            tracker.fade(min(1.0, FORGETTING / self.wait))
        if not self.costs.known:
            level = UNTIMED * now.plain
            self.costs = DraftCosts({now.active: level}, UNTIMED_TOKEN * level, estimated=True)

    def trackers(self, now: Coming) -> list[Tracker]:
        """Of the requests that let it guess."""
        return [now.served[place].trackers[self.index] for place in now.places(self.drafter.name)]

    def offer(self, now: Coming, ready: Sequence[Option], answer: float) -> Offer | None:
        """What it promises beside what is ready; None if it may not guess.

        Args:
            now: the pass.
            ready: drafts of others.
            answer: tokens of an answer, usually.
        """
        places = now.places(self.drafter.name)
        longest = min(self.longest, len(now.prices) - 1)
        if not places or longest < 1:
            return None
        slots, level = len(places), self.costs.level(len(places))
        missing = [self.drafter.missing(now.requests[place].slot, now.requests[place].history) for place in places]
        reading = self.costs.reading(sum(missing), slots)
        breadth = now.served[places[0]].trackers[self.index].table.breadth
        drafting = [level * self.paid_levels(nodes / breadth) for nodes in range(longest + 1)]
        prices = [price + more for price, more in zip(now.affordable(drafting), drafting, strict=True)]
        promises = [
            Option(place, now.served[place].trackers[self.index].odds, levels=longest, breadth=breadth, hope=HOPE)
            for place in places
        ]
        best = weigh([*ready, *promises], now.active, prices, now.rate)
        left = sum(now.left(place, answer) for place in places) / slots
        passes = max(1.0, max(FEWEST_LEFT, left) / (1.0 + best.gain / now.active))
        times = PAY_BACK * self.patience if reading > now.plain else 1.0
        value = best.value - now.rate * reading * times / passes
        return Offer(best.value, value, reading, level + reading, missing, places)

    def known(self, now: Coming) -> bool:
        """Whether enough is known of it to pay for a reading with what it will save."""
        return min(tracker.table.trials for tracker in self.trackers(now)) >= EVIDENCE

    def probed(self, hit: bool, read: bool) -> None:
        """A probe is over.

        Args:
            hit: its guess was right.
            read: a prompt was read for it.
        """
        self.probes = IN_A_ROW if read else max(0, self.probes - 1)
        self.hits = self.hits + 1 if hit else 0
        if hit:
            self.paid()
        else:
            self.wait *= GROWTH

    def paid(self) -> None:
        """It was worth asking."""
        self.wait = max(FIRST_WAIT, self.wait / GROWTH)

    def repay(self, slots: Sequence[int], saved: float) -> None:
        """A pass for which it guessed saved so much, in plain passes."""
        for slot in slots:
            paid = min(max(0.0, saved), self.owed.get(slot, 0.0))
            if paid:
                self.owed[slot] -= paid
                saved -= paid

    def close(self, slot: int) -> None:
        """The request of that slot is over."""
        self.hits = self.probes = self.ahead = 0
        left = self.owed.pop(slot, None)
        if left is not None:
            self.patience = self.patience * 2.0 if left > 0.0 else max(1.0, self.patience / 2.0)
