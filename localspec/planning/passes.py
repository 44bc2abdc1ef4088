"""A pass from the first question to what came of it, and the drafters that cost something (see `planning.plan`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.interfaces import Drafter, DraftRequest, Proposal, Target, Undrafted
from localspec.planning.acceptance import CONVINCING_STREAK, Candidate, Tracker, weigh
from localspec.planning.budget import Served
from localspec.planning.costs import DraftCosts

FIRST_WAIT, WAIT_GROWTH = 8.0, 1.15
"""Passes until a drafter that does not promise enough is probed first; factor of this wait after each miss."""
ASSUMED_LEVEL_COST = 0.2
"""Assumed cost of a level, in plain passes, before the drafter was timed: that of a head of one or two layers."""
ASSUMED_TOKEN_COST = 0.03
"""Assumed cost of a token that the drafter reads, in levels, before reading was timed."""
OPTIMISM = 0.5
"""Standard errors added to the learned acceptance of a drafter, so that a little known one is tried."""
READING_PAYBACK = 1.5
"""Factor by which the expected gain of a reading must exceed its cost; doubled after each reading that did not pay."""
ENOUGH_TRIALS = 32.0
"""Scored guesses of a drafter from which on its readings may cost more than the budget holds."""
FEWEST_TOKENS_LEFT = 16.0
"""Lower limit of the expected number of tokens left in an answer."""
PROBE_SHARE = 0.006
"""Share of plain decoding's time since the drafter was asked last that a probe may take."""
FORGOTTEN_SHARE = 0.5
"""Share of a request's own statistics that is forgotten from one probe to the next."""


@dataclass(slots=True)
class PlannedPass(Proposal):
    """A planned pass: who shares it and what it costs by width, then what was drawn for it and what is sent."""

    requests: Sequence[DraftRequest]
    pending: Sequence[int]
    """For each request, rows that the pass must decode besides drafts."""
    served: list[Served]
    lengths: list[int]
    """For each request, number of tokens in its history."""
    row: list[float]
    """Expected seconds of a pass by width (`PassCosts.rows`)."""
    prices: list[float]
    """Expected seconds of this pass by draft nodes per slot; infinity where a width is not allowed."""
    feared: list[float]
    """Feared seconds of this pass by draft nodes per slot."""
    plain: float
    """Seconds in which plain decoding brings each slot one token: one pass, or several if slots do not share one."""
    plain_width: int
    """Rows of that pass; 0 = several."""
    rate: float
    """Tokens a second at the pace of late (`TokenPace`): a draft must bring more for the seconds that it adds."""
    forced: bool
    """Settings or a request want a draft in this pass, whether it pays or not."""
    room: float = math.inf
    """Seconds that drafting and the pass together may lose: the answers in the pass share what they may lose."""
    candidates: list[Candidate] = field(default_factory=list)
    """Drafts that were drawn, whether sent or not."""
    asked: Promise | None = None
    """Of the costly drafter that guessed; None = none did."""
    width: int = 0
    """Rows of the one pass that runs; 0 = there may be several passes."""
    expected: float = 0.0
    """Expected seconds of the pass, drafting left out."""
    plain_rows: bool = True
    """Whether the pass has the rows of plain decoding, no draft among them."""
    trial: bool = False
    """Whether the draft is sent to measure the cost of its pass, not because it pays."""
    undrafted: Undrafted | None = None
    """Why no draft is sent; None = one is, or no drafter may guess."""
    looked: bool = False
    """Whether drafters were asked and their drafts weighed."""
    host: float = 0.0
    """Seconds of planning and learning, costly drafters left out."""
    guarded: bool = False
    """Whether a draft is sent only because settings or a request force it."""

    @property
    def cheapest(self) -> float:
        """Plain passes that the draft which could lose least could lose."""
        return (min(self.feared[1:], default=math.inf) - self.prices[0]) / self.plain

    @property
    def open(self) -> list[Candidate]:
        """The candidates, without drafts for answers whose budget covers none: one answer's losses close no other's
        slot."""
        if self.forced or self.active == 1:
            return self.candidates
        cheapest = self.cheapest
        closed = {place for place, one in enumerate(self.served) if one.budget.passes < cheapest}
        return [Candidate(one.place, one.tracker) if one.place in closed else one for one in self.candidates]

    @property
    def length(self) -> int:
        return sum(self.lengths) // len(self.lengths)

    @property
    def active(self) -> int:
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


@dataclass(slots=True)
class Rest(Proposal):
    """A pass in which no drafter is asked. Between two passes the CPU's caches hold the model's weights and code runs
    cold, so such passes are noted, and learned from together."""

    last: PlannedPass
    host: float


def prices(
    target: Target,
    requests: Sequence[DraftRequest],
    pending: Sequence[int],
    row: Sequence[float],
    limit: int,
    exact: frozenset[int] | None,
) -> list[float]:
    """Seconds of a pass by nodes a slot sends, from 0 to `limit`, from seconds by width (`row`); infinity where a
    width is not in `exact`, but for a pass without drafts; None = any may run."""
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


@dataclass(slots=True)
class Promise:
    """A drafter's promise for a pass before it has guessed; then what its guess took."""

    asking: CostlyDrafter
    promise: float
    """Expected tokens of its draft, less the rate times its extra seconds; reading is not counted."""
    value: float
    """`promise` less the cost of reading, spread over the passes of the answer."""
    reading: float
    """Seconds of reading the tokens that the drafter has not read yet."""
    first: float
    """Seconds of reading and of the first level together."""
    missing: list[int]
    """Number of tokens that the drafter has not read yet, for each of `places`."""
    places: list[int]
    """Indices of the requests that let the drafter guess."""
    probing: bool = False
    """The drafter was asked to learn its acceptance, not because it promised enough."""
    seconds: float = 0.0
    levels: int = 0
    first_guesses: dict[int, int] = field(default_factory=dict)
    """First token of each draft, by index of the request."""


@dataclass(slots=True, eq=False)
class CostlyDrafter:
    """A drafter that costs something, and when it is asked: its promise, what it must read first, when it is probed."""

    index: int
    """Index of the drafter among all drafters of the plan."""
    drafter: Drafter
    costs: DraftCosts
    longest: int
    wait: float = FIRST_WAIT
    """Passes without being asked after which the drafter is probed."""
    idle: float = math.inf
    ahead: int = 0
    """Passes in a row in which the drafter promised more than the free drafts. After CONVINCING_STREAK of them it may
    read a prompt: a copy would have begun by then."""
    hits: int = 0
    """Number of probes in a row whose guess was right."""
    probes: int = 0
    """Number of probes that are still made without waiting, since the drafter has just read a prompt."""
    patience: float = 1.0
    """Factor of READING_PAYBACK: doubled by a reading that did not pay, halved by one that did."""
    owed: dict[int, float] = field(default_factory=dict)
    """By slot, cost of readings that was not earned back yet, in plain passes."""
    one_pass: bool = field(init=False)

    def __post_init__(self) -> None:
        self.one_pass = bool(getattr(self.drafter, "one_pass", False))

    def due(self, offer: Promise, now: PlannedPass) -> bool:
        """Whether to probe the drafter although it does not promise enough: only where its guess could be sent, too."""
        if offer.first > now.room or now.affordable([0.0, offer.first - offer.reading])[1] == math.inf:
            return False
        if self.hits > 0 or self.probes > 0:
            return offer.reading <= now.plain
        if offer.reading > now.plain and self.ahead < CONVINCING_STREAK:
            return False
        return self.idle >= self.wait and offer.first <= PROBE_SHARE * self.idle * now.plain

    def may_read(self, offer: Promise, now: PlannedPass, passes: float) -> bool:
        """Whether the drafter may read the tokens that it lacks, if readings of a little known drafter may cost as many
        plain `passes`."""
        if offer.reading > now.plain and self.ahead < CONVINCING_STREAK:
            return False
        return offer.reading <= max(now.room, passes * now.plain) or self.known(now)

    def paid_levels(self, levels: float) -> float:
        """Number of levels to pay for in a draft of `levels` levels: at most 1 if one pass guesses all."""
        return min(1.0, levels) if self.one_pass else levels

    def rest(self, now: PlannedPass) -> None:
        """Begins a pass: the drafter's statistics of the requests fade, and its cost is assumed if it is unknown."""
        self.idle += 1
        for tracker in self.trackers(now):
            tracker.fade(min(1.0, FORGOTTEN_SHARE / self.wait))
        if not self.costs.level(now.active):
            level = ASSUMED_LEVEL_COST * now.plain
            self.costs = DraftCosts({now.active: level}, ASSUMED_TOKEN_COST * level, estimated=True)

    def trackers(self, now: PlannedPass) -> list[Tracker]:
        """Acceptance of this drafter in each request that lets it guess."""
        return [now.served[place].trackers[self.index] for place in now.places(self.drafter.name)]

    def offer(self, now: PlannedPass, answer: float) -> Promise | None:
        """The drafter's promise beside the drafts of the pass, where answers usually have `answer` tokens; None if
        it may not guess."""
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
            Candidate(place, tracker, levels=longest, breadth=breadth, optimism=OPTIMISM)
            for place, tracker in zip(places, self.trackers(now), strict=True)
        ]
        best = weigh([*now.candidates, *promises], now.active, prices, now.rate)
        said = [now.lengths[place] - now.served[place].start for place in places]
        left = sum(min(float(now.requests[place].room), answer - one) for place, one in zip(places, said, strict=True))
        passes = max(1.0, max(FEWEST_TOKENS_LEFT, left / slots) / (1.0 + best.gain / now.active))
        times = READING_PAYBACK * self.patience if reading > now.plain else 1.0
        value = best.value - now.rate * reading * times / passes
        return Promise(self, best.value, value, reading, level + reading, missing, places)

    def known(self, now: PlannedPass) -> bool:
        """Whether enough guesses of the drafter were scored to let a reading cost more than the budget holds."""
        return min(tracker.table.scored for tracker in self.trackers(now)) >= ENOUGH_TRIALS

    def guessed(self, now: PlannedPass, probing: bool, hit: bool, read: bool) -> None:
        """Counts a guess, which was a probe or not, right or not, and after a prompt was `read` or not: the next probe
        comes sooner if asking was worth its time."""
        self.idle = 0.0
        self.wait = max(FIRST_WAIT, self.wait / WAIT_GROWTH) if hit or not probing else self.wait * WAIT_GROWTH
        if probing:
            self.probes = CONVINCING_STREAK if read else max(0, self.probes - 1)
            self.hits = self.hits + 1 if hit else 0
            if self.hits == CONVINCING_STREAK:  # the content has changed
                self.hits = 0
                for tracker in self.trackers(now):
                    tracker.fade(1.0)

    def repay(self, slots: Sequence[int], saved: float) -> None:
        """Pays off readings with `saved`, the plain passes that a pass with its guess saved."""
        for slot in slots:
            paid = min(max(0.0, saved), self.owed.get(slot, 0.0))
            if paid:
                self.owed[slot] -= paid
                saved -= paid

    def close(self, slot: int) -> None:
        """Ends the request of a slot: a reading that was not earned back makes the next one harder."""
        self.hits = self.probes = self.ahead = 0
        left = self.owed.pop(slot, None)
        if left is not None:
            self.patience = self.patience * 2.0 if left > 0.0 else max(1.0, self.patience / 2.0)
