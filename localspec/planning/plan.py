"""Never slower: drafts what pays on this machine for this text, down to not drafting at all.

And a plan that drafts the same length every time: *rejection* and *block* need one, and so do measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from localspec.config import FIXED_DRAFT, LONGEST_COSTLY, LONGEST_DRAFT
from localspec.engine.constraint import legal, paths
from localspec.engine.interfaces import (
    ANY_PRICE,
    EMPTY_DRAFT,
    NO_REVIEW,
    Curve,
    Draft,
    Drafter,
    DraftRequest,
    Outcome,
    Proposal,
    Review,
    Target,
    Undrafted,
)
from localspec.errors import DecodeError, UsageError
from localspec.planning.acceptance import (
    CONVINCING_STREAK,
    MOST_NODES,
    PRIOR_ACCEPTANCE,
    Candidate,
    DraftChoice,
    DraftPrice,
    Tracker,
    learn,
    likeliest,
    moved,
    weigh,
)
from localspec.planning.budget import MOST_BETWEEN_LOOKS, Budget, Credit, Looks, Served
from localspec.planning.costs import PASS_NOISE, DraftCosts, Knowledge, PassCosts
from localspec.planning.passes import CostlyDrafter, PlannedPass, Promise, Rest, prices


def fitting(
    target: Target, slots: Sequence[int], pending: Sequence[int], drafts: list[Draft], exact: frozenset[int] | None
) -> list[Draft]:
    """Drafts, one per slot, cut from the end until every pass they make has a width in `exact`; None = any. `pending`:
    rows each slot must decode anyway."""
    longest = max(map(len, drafts), default=0)
    while exact is not None and longest > 0:
        rows = {slot: rows + len(draft) for slot, rows, draft in zip(slots, pending, drafts, strict=True)}
        if all(width in exact for width in target.pass_widths(rows)):
            break
        longest -= 1
        drafts = [draft.truncated(longest) for draft in drafts]
    return drafts


class FixedPlan:
    """Always drafts up to `max_draft_tokens`: the first drafter with a good guess is sent. Confidences of different
    drafters are never compared with each other."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        max_draft_tokens: int,
        exact_widths: frozenset[int] | None,
        thresholds: Mapping[str, float] | None = None,
    ) -> None:
        """Asks `drafters` in this order for at most `max_draft_tokens`, 0 = plain decoding. A pass may have one of
        `exact_widths`, 1 always among them; None = any (exactness is off). `thresholds`: by drafter, the confidence
        that its first guess needs (prompt lookup: tokens matched). Raises UsageError: `max_draft_tokens` is negative or
        above 64."""
        if not 0 <= max_draft_tokens <= MOST_NODES:
            raise UsageError(f"max_draft_tokens is {max_draft_tokens}; it must be between 0 and {MOST_NODES}.")
        self.drafters: Sequence[Drafter] = tuple(drafters)
        self.dropped: dict[str, str] = {}
        self.max_draft_tokens = max_draft_tokens
        self._exact, self._thresholds = exact_widths, dict(thresholds or {})

    def draft(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> Proposal:
        limit = self.max_nodes(len(requests))
        asked = [request if request.max_nodes <= limit else request.limited(limit) for request in requests]
        drafts = [EMPTY_DRAFT] * len(asked)
        for drafter in self.drafters:
            places = [place for place, one in enumerate(asked) if not len(drafts[place]) and one.allows(drafter.name)]
            if not places or drafter.name in self.dropped:
                continue
            wanted = [asked[place] for place in places]
            for place, draft in zip(places, legal(wanted, drafter.draft(wanted)), strict=True):
                # One with `probs` is sent: dropping it by its tokens would bias the answer.
                scores = draft.confidence if len(draft) and draft.probs is None else None
                if scores is None or scores[0] >= self._thresholds.get(drafter.name, 0.0):
                    drafts[place] = draft
        return Proposal(fitting(target, [one.slot for one in requests], pending, drafts, self._exact))

    def learn(self, proposal: Proposal, outcomes: Sequence[Outcome], seconds: float) -> Review:
        for drafter in self.drafters:
            drafter.observe(outcomes)
        return NO_REVIEW

    def read(self, rows: int, length: int, seconds: float) -> None:
        pass  # it weighs no costs

    def drop(self, name: str, reason: str) -> None:
        for drafter in self.drafters:
            if drafter.name == name and name not in self.dropped:
                self.dropped[name] = reason
                drafter.close()

    def max_nodes(self, active: int) -> int:
        """The longest draft whose pass (all slots drafting alike) has an allowed width."""
        nodes = self.max_draft_tokens
        while self._exact is not None and nodes > 0 and active * (1 + nodes) not in self._exact:
            nodes -= 1
        return nodes


LEAST_GAIN = 0.01
"""Tokens a pass: a draft is sent if it promises at least so many more than no draft."""
SMALL_GAIN = 0.25
"""Tokens a pass: a costly drafter may read and is probed only where drafts without cost promise at most so many."""


@dataclass(frozen=True, slots=True)
class Forced:
    """Choices that settings have made."""

    nodes: int | None = None
    """Drafts have this many nodes, as far as drafters and exact widths allow."""
    drafting: bool = False
    """Something is drafted in every pass; how much is the plan's choice."""


class AdaptivePlan:
    """Chooses drafter, nodes and width of every pass."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        exact_widths: frozenset[int] | None,
        knowledge: Knowledge,
        *,
        longest: int = LONGEST_DRAFT,
        longest_costly: int = LONGEST_COSTLY,
        fixed: FixedPlan | None = None,
        forced: Forced | None = None,
        clock: Callable[[], float] = perf_counter,
        delayed: Callable[[], float] = float,
    ) -> None:
        """Asks `drafters` in this order; a pass may have one of `exact_widths` (None = any). The plan adds to
        `knowledge` of the pair of models. `longest`: most nodes of a draft, `longest_costly` of one from a drafter that
        costs something. `fixed`: for rules that need a fixed plan. `clock` is in seconds, and `delayed` says for how
        many our threads waited for a CPU since the last call."""
        self.drafters: Sequence[Drafter] = tuple(drafters)
        self.knowledge = knowledge
        self._exact, self._longest, self._clock = exact_widths, longest, clock
        self.delayed = delayed
        self._fixed = fixed or FixedPlan(drafters, FIXED_DRAFT, exact_widths)
        self.dropped = self._fixed.dropped
        self._forced = forced or Forced()
        self._forces = self._forced.drafting or bool(self._forced.nodes)
        self._free = [(index, one) for index, one in enumerate(self.drafters) if one.free]
        most = longest if self._forced.nodes else min(longest, longest_costly)
        self._costly = [
            CostlyDrafter(index, one, knowledge.draft_costs.get(one.name) or DraftCosts(), most)
            for index, one in enumerate(self.drafters)
            if not one.free
        ]
        self._costs: dict[int, PassCosts] = {1: knowledge.costs}
        self._served: dict[int, Served] = {}
        self._looks, self._credit = Looks(), Credit()
        self._watchers: list[Any] = [one for one in self.drafters if hasattr(one, "matched")]
        self._last: PlannedPass | None = None
        """The last pass that was planned, if the same requests may rest after it."""
        self._review = NO_REVIEW
        """Of a pass that rests."""
        self._rested: list[tuple[float, float]] = []
        """Seconds and delay of the passes since then."""

    # -- before a pass ----------------------------------------------------------------------------------------------

    def draft(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> Proposal:
        if any(one.needs_probs for one in requests):
            return self._fixed.draft(target, requests, pending)
        started = self._clock()
        if self._last is not None and self._rests(self._last, requests, pending):
            return Rest([EMPTY_DRAFT] * len(requests), self._last, self._clock() - started)
        self._settle()
        now = self._coming(target, requests, pending)
        if (now.plain or now.forced) and any(now.places(one.name) for one in self.drafters):
            now.looked = now.forced or now.active in self._costs[now.active].timed
            if now.looked:
                self._choose(now)
            else:  # drafters are not asked before a plain pass was timed
                now.undrafted = Undrafted.UNTIMED
        self._send(now, target)
        now.host = self._clock() - started - (now.asked.seconds if now.asked else 0.0)
        return now

    def _rests(self, last: PlannedPass, requests: Sequence[DraftRequest], pending: Sequence[int]) -> bool:
        """Whether no drafter is asked in this pass: it has the requests of the last one, and a look is not due."""
        if len(self._rested) >= MOST_BETWEEN_LOOKS or not len(requests) == sum(pending) == last.active:
            return False
        for request, served in zip(requests, last.served, strict=True):
            if request.history is not served.history or (served.promising and last.looked):
                return False
        if not last.looked:
            return True
        if self._looks.due(last.plain) or self._saved(last):
            return False
        return not self._looks.affordable or not any(  # a copy that seems to go on is worth a look before its turn
            watcher.matched(one) >= CONVINCING_STREAK
            for watcher in self._watchers
            for one in requests
            if one.allows(watcher.name) and watcher.name not in self.dropped
        )

    def _saved(self, now: PlannedPass) -> bool:
        """Whether what guesses have saved pays for a look."""
        gained = sum(one.budget.gained for one in now.served)
        return gained > 0.0 and gained * now.plain >= now.active * self._looks.look.seconds

    def _settle(self) -> None:
        now, passes = self._last, len(self._rested)
        if now is None or not passes:
            return
        costs, spent = self._costs[now.active], 1.0 + self._looks.rest.seconds / now.plain
        for place, (seconds, delayed) in enumerate(self._rested, 1):
            if now.plain_width:
                costs.observe(now.plain_width, now.length + place, seconds, delayed)
            self.knowledge.pace.book(1.0, spent)
        for served in now.served:
            served.budget.book(passes, passes)
        for one in self._costly:
            one.idle += passes
        self._rested.clear()

    def _choose(self, now: PlannedPass) -> None:
        self._ask_free(now)
        best = self._best(now)
        if self._costly and self._ask(now, best):
            best = self._best(now)
        if not now.candidates:
            costly = any(now.places(one.drafter.name) for one in self._costly)
            now.undrafted = Undrafted.UNLIKELY if costly else Undrafted.NOTHING
        elif not now.forced and best.value <= LEAST_GAIN:
            best = self._trial(now)
        if best.nodes:
            now.guarded = best.value <= LEAST_GAIN and not now.trial
            now.drafts = [
                EMPTY_DRAFT if one < 0 else now.candidates[one].draft.truncated(best.nodes) for one in best.picks
            ]
        for place, (served, draft) in enumerate(zip(now.served, now.drafts, strict=True)):
            if not len(draft) and not served.budget.unsent:
                served.budget.unsent = likeliest(now.candidates, place)

    def _coming(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> PlannedPass:
        active = len(requests)
        costs = self._costs.get(active)
        if costs is None:
            costs = self._costs[active] = self._costs[1].copy(active)
        costs.widen(sum(pending) + active * self._longest)
        served, lengths = [self._serve(one) for one in requests], [len(one.history) for one in requests]
        row, feared = costs.rows(sum(lengths) // active)
        limit = max(0, min(self._longest, max(one.max_nodes for one in requests)))
        widths = target.pass_widths({one.slot: 1 for one in requests}) if active > 1 else [1]
        plain = sum(row[one] for one in widths)
        now = PlannedPass(
            [EMPTY_DRAFT] * active,
            requests,
            pending,
            served,
            lengths,
            row,
            prices=prices(target, requests, pending, row, limit, self._exact),
            feared=prices(target, requests, pending, feared, limit, self._exact),
            plain=plain,
            plain_width=widths[0] if len(widths) == 1 else 0,
            rate=self.knowledge.pace.value * active / plain if plain else 0.0,
            forced=self._forces or any(one.asked.forced for one in requests),
        )
        if now.plain and not now.forced:
            cheapest = now.cheapest
            for one in served:
                if one.budget.passes < cheapest:
                    one.budget.lend(now.prices, plain)
            now.room = sum(max(0.0, one.budget.passes) for one in served) / active * plain
        return now

    def _serve(self, request: DraftRequest) -> Served:
        """The state of a request; a new one begins."""
        served, knowledge = self._served.get(request.slot), self.knowledge
        if served is None or served.history is not request.history:
            if served is not None:
                knowledge.answer = moved(knowledge.answer, len(served.history) - served.start)
            for one in self._costly:
                one.close(request.slot)
            knowledge.pace.begin()
            trackers = [Tracker(knowledge.acceptance[one.name]) for one in self.drafters]
            budget = Budget(self._credit)
            served = self._served[request.slot] = Served(request.history, len(request.history), trackers, budget)
        return served

    def _ask_free(self, now: PlannedPass) -> None:
        limit = len(now.prices) - 1
        asked = [one if one.max_nodes <= limit else one.limited(limit) for one in now.requests]
        constrained = any(one.constraint is not None for one in now.requests)
        for index, drafter in self._free:
            if drafter.name in self.dropped or (drafter.needs.constraint and not constrained):
                continue
            places = now.places(drafter.name)
            wanted = [asked[place] for place in places]
            for place, draft in zip(places, legal(wanted, drafter.draft(wanted)) if wanted else [], strict=True):
                if len(draft):
                    now.candidates.append(Candidate(place, now.served[place].trackers[index], draft))

    def _best(self, now: PlannedPass) -> DraftChoice:
        """The choice of highest value among the drafts drawn so far."""
        only = 0
        if self._forced.nodes:
            only = min(self._forced.nodes, len(now.prices) - 1)
            while only > 0 and now.prices[only] == math.inf:
                only -= 1
        floor = -math.inf if now.forced else 0.0
        spent = [max(0.0, now.asked.seconds - now.asked.reading)] * len(now.prices) if now.asked else ()
        return weigh(now.open, now.active, now.affordable(spent), now.rate, floor, only, now.again)

    def _trial(self, now: PlannedPass) -> DraftChoice:
        """The shortest draft, sent to measure its pass, if it is likely to be right although it is not worth its
        expected price. Else nothing, and why."""
        shortest = next((nodes for nodes, price in enumerate(now.prices) if nodes and price < math.inf), 0)
        likely = weigh(now.candidates, now.active, now.prices, now.rate, -math.inf, shortest, now.again)
        if not shortest or likely.gain < PRIOR_ACCEPTANCE * shortest * now.active:
            now.undrafted = Undrafted.UNLIKELY
        elif now.affordable()[shortest] == math.inf:
            now.undrafted = Undrafted.LOST
        elif not all(one.tries for one in now.served):
            now.undrafted = Undrafted.PRICE
        else:
            now.trial = True
            return likely
        return DraftChoice(0.0, 0, [])

    def _ask(self, now: PlannedPass, best: DraftChoice) -> bool:
        """Asks the costly drafter that promises most over the drafts so far, or probes one; whether one guessed."""
        top: Promise | None = None
        probe: Promise | None = None
        most = max(best.value, 0.0) + LEAST_GAIN
        for one in self._costly:
            if one.drafter.name in self.dropped or not now.places(one.drafter.name):
                continue
            one.rest(now)
            offer = one.offer(now, self.knowledge.answer)
            if offer is None:
                continue
            one.ahead = one.ahead + 1 if best.value <= max(SMALL_GAIN, offer.promise) else 0
            if now.forced:
                if not best.nodes and (top is None or offer.value > top.value):
                    top = offer
            elif offer.value > most and one.may_read(offer, now, self.knowledge.readings):
                top, most = offer, offer.value
            elif best.value <= SMALL_GAIN and probe is None and one.due(offer, now):
                probe = offer
        chosen = top or probe
        if chosen is None:
            return False
        chosen.probing = top is None
        return self._drawn(now, chosen)

    def _drawn(self, now: PlannedPass, offer: Promise) -> bool:
        """Lets a drafter guess; one that fails is dropped, and the answer goes on."""
        one = offer.asking
        longest = 1 if offer.probing else min(one.longest, len(now.prices) - 1)
        shares = [price / now.active for price in now.affordable()]
        level = 0.0 if one.one_pass else one.costs.level(len(offer.places)) / len(offer.places)
        trackers, wanted = one.trackers(now), []
        for place, tracker in zip(offer.places, trackers, strict=True):
            nodes, price = max(0, min(longest, now.requests[place].max_nodes)), ANY_PRICE
            if not (offer.probing or self._forced.nodes):
                price = DraftPrice(now.rate, shares, level, tracker.probability, tracker.typical(longest))
            wanted.append(replace(now.requests[place], max_nodes=nodes, max_depth=nodes, price=price))
        started = self._clock()
        try:
            drafts = legal(wanted, one.drafter.draft(wanted))
        except (DecodeError, MemoryError) as error:
            self.drop(one.drafter.name, str(error) or "out of memory")
            return False
        offer.seconds, now.asked = self._clock() - started, offer
        for place, tracker, draft in zip(offer.places, trackers, drafts, strict=True):
            if len(draft):
                now.candidates.append(Candidate(place, tracker, draft, free=False))
                depth = max(map(len, paths(draft)))
                offer.levels = max(offer.levels, depth)
                offer.first_guesses[place] = int(draft.tokens[0])
                tracker.table.breadth = moved(tracker.table.breadth, len(draft) / depth)
        return True

    def _send(self, now: PlannedPass, target: Target) -> None:
        """Cuts drafts to allowed widths, and fills in the width and the expected seconds of the pass."""
        drafted = any(map(len, now.drafts))
        if drafted and (now.active > 1 or now.forced):  # drafts shorter than the choice make other widths
            slots = [one.slot for one in now.requests]
            now.drafts = fitting(target, slots, now.pending, now.drafts, self._exact)
            drafted = any(map(len, now.drafts))
        widths = [now.pending[0] + len(now.drafts[0])]
        if now.active > 1:
            rows = zip(now.requests, now.pending, now.drafts, strict=True)
            widths = target.pass_widths({one.slot: waiting + len(draft) for one, waiting, draft in rows})
        now.plain_rows = not drafted and sum(now.pending) == now.active
        # Rows that wait may be decoded one by one where nothing is drafted: no single pass to learn from.
        if len(widths) == 1 and (drafted or now.plain_rows):
            now.width = widths[0]
        now.expected = sum(now.row[width] for width in widths) if drafted else now.prices[0]

    # -- after a pass --------------------------------------------------------------------------------------------------

    def learn(self, proposal: Proposal, outcomes: Sequence[Outcome], seconds: float) -> Review:
        started = self._clock()
        if not isinstance(proposal, (Rest, PlannedPass)):
            return self._fixed.learn(proposal, outcomes, seconds)
        for drafter in self.drafters:
            drafter.observe(outcomes)
        if isinstance(proposal, Rest):
            return self._rest(proposal, outcomes, seconds, started)
        now, costs = proposal, self._costs[proposal.active]
        compares = now.active in costs.timed
        curve = Curve(now.plain / costs.pace, now.row, costs.pace, now.width) if now.plain else None
        said = list[list[int]]([[]] * now.active)
        places = {one.slot: place for place, one in enumerate(now.requests)}
        for outcome in outcomes:
            place = places[outcome.slot]
            said[place] = outcome.history.tokens[now.lengths[place] :].tolist()
            now.served[place].heard(said[place], len(now.drafts[place]))
        for candidate in now.candidates:
            learn(candidate, said[candidate.place])
        seconds, delayed = self._undelayed(now, seconds)
        if now.width:
            costs.observe(now.width, now.length, seconds, delayed)
        if now.asked is not None:
            self._heard(now.asked, now, said)
        if now.looked:
            self._looks.look.add(now.host + self._clock() - started)
        if now.plain and outcomes and not now.forced:
            self._book(now, [len(one) for one in said], seconds)
        row = (now.prices[1] - now.prices[0]) / now.plain if now.plain and len(now.prices) > 1 else 0.0
        compared = now.plain if compares else 0.0
        plain = replace(curve, width=now.plain_width) if curve else None
        self._review = Review(compared, True, False, now.undrafted, row, plain)
        self._last = now if compares and not now.forced else None
        return Review(compared, now.plain_rows, now.guarded, now.undrafted, row, curve)

    def _rest(self, proposal: Rest, outcomes: Sequence[Outcome], seconds: float, started: float) -> Review:
        now, delayed = proposal.last, 0.0
        for outcome in outcomes:
            self._served[outcome.slot].heard([outcome.verdict.next_token], 0)
        if seconds > 2.0 * now.plain:  # asking takes as long as planning
            delayed = max(0.0, min(self.delayed(), seconds - now.plain))
        self._rested.append((seconds - delayed, delayed))
        self._looks.book(1.0, self._looks.rest.seconds / now.plain)
        self._looks.rest.add(proposal.host + self._clock() - started)
        return self._review

    def read(self, rows: int, length: int, seconds: float) -> None:
        self._costs[1].observe_prompt(rows, length, seconds, min(self.delayed(), seconds / 2))

    def _undelayed(self, now: PlannedPass, seconds: float) -> tuple[float, float]:
        """Seconds of a pass without its delay, and the delay: at most the excess over the expected seconds, and at most
        what `delayed` reports. The rest of the reported delay is taken off the seconds of drafting."""
        offer, guessing, drafting = now.asked, 0.0, 0.0
        if offer is not None:
            guessing = offer.first + offer.levels * offer.asking.costs.level(len(offer.places))
            drafting = offer.seconds
        if not now.plain or seconds + drafting <= (1.0 + PASS_NOISE) * (now.expected + guessing):
            return seconds, 0.0
        waited = self.delayed()
        delayed = max(0.0, min(waited, seconds - now.expected))
        if offer is not None:
            offer.seconds -= max(0.0, min(waited - delayed, drafting - guessing))
        return seconds - delayed, delayed

    def _heard(self, offer: Promise, now: PlannedPass, said: Sequence[Sequence[int]]) -> None:
        """Learns the cost of a costly drafter from its draft, and when to probe that drafter next."""
        one, unread = offer.asking, 0
        if not offer.levels:
            requests = [now.requests[place] for place in offer.places]
            unread = sum(one.drafter.missing(request.slot, request.history) for request in requests)
        read = max(0, sum(offer.missing) - unread)
        one.costs.observe(one.paid_levels(offer.levels), read, len(offer.places), offer.seconds)
        self.knowledge.draft_costs[one.drafter.name] = one.costs
        hit = any(said[place][:1] == [token] for place, token in offer.first_guesses.items())
        one.guessed(now, offer.probing, hit, offer.reading > now.plain)

    def _book(self, now: PlannedPass, tokens: Sequence[int], seconds: float) -> None:
        """Books what the pass saved or lost for each request, in plain passes: it brought each so many `tokens` in
        `seconds`, delays by other programs left out."""
        offer, plain, nodes = now.asked, sum(tokens) / now.active, [len(one) for one in now.drafts]
        drafted, stalls = sum(nodes), max(0.0, self._costs[now.active].stalls)
        host = self._looks.look.seconds / now.plain if now.looked else 0.0
        shared = not now.looked or self._looks.due(now.plain) or not self._saved(now)
        self._looks.book(plain, 0.0 if drafted or not shared else host)
        if not (drafted or shared):
            every = sum(one.budget.gained for one in now.served)
            for one in now.served:
                one.budget.pay(host * now.active * one.budget.gained / every)
        spent = plain if now.plain_rows else seconds / now.plain
        if drafted:
            spent = min(spent, now.feared[max(nodes)] / now.plain + 1.0) + host
        if offer is not None:
            spent += self._asking_took(offer, now)
        self.knowledge.pace.book(plain, spent + (0.0 if drafted else host))
        if offer is not None:
            offer.asking.repay([now.requests[place].slot for place in offer.places], plain - spent)
        for served, brought, sent in zip(now.served, tokens, nodes, strict=True):
            share = now.active * sent / drafted if drafted else 1.0  # who drafted nothing loses nothing by itself
            took = 1.0 + (spent - 1.0) * share
            served.budget.book(brought * (1.0 + stalls) if sent else brought, took)
            if now.trial:
                served.tries = took < brought

    def _asking_took(self, offer: Promise, now: PlannedPass) -> float:
        """Plain passes that a costly drafter took, those of a reading that is to be paid back left out."""
        took, one = offer.seconds / now.plain, offer.asking
        reading = one.costs.reading(sum(offer.missing), len(offer.places))
        invested = min(reading / now.plain, took)
        if invested * now.plain <= now.room:
            return took
        if not one.known(now):
            self.knowledge.readings = max(0.0, self.knowledge.readings - invested)
        for place in offer.places:
            slot = now.requests[place].slot
            one.owed[slot] = one.owed.get(slot, 0.0) + invested / len(offer.places)
        return took - invested

    def drop(self, name: str, reason: str) -> None:
        self._settle()
        self._last = None
        self._fixed.drop(name, reason)
