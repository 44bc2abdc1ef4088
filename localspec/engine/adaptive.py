"""Never slower: drafts what pays on this machine for this text, down to not drafting at all.

**The rule.** Every pass is a choice among drafts d of any drafter, cut to any number m of nodes; the empty draft is
one of them. It brings N = accepted + 1 tokens a slot and takes T seconds. Taken is the choice that maximises, over all
slots together,

    E[N(d, m)] - lambda * E[T(d, m)],        lambda = the best rate known so far, in tokens/s,

    E[N] = slots + sum over nodes of P(all nodes from the root to this one are accepted),
    E[T] = cost(rows of the pass, cached length) + levels * cost of a level of the drafter + reading it has to catch up.

**Why.** Passes follow one another like renewals: choosing by a fixed rule, the long-run speed is E[N] / E[T] (renewal
reward theorem), the ratio of two means and not the mean of a ratio. lambda* = max E[N] / E[T] is the one number with
max E[N] - lambda* E[T] = 0, and the rule that reaches the maximum for lambda* is the fastest one (Dinkelbach 1967).
Started from plain decoding's rate and followed by the rate that is really reached, lambda rises to lambda*:
Dinkelbach's iteration with the passes themselves as its steps. A request begins with little of what the ones before
reached, and little over plain decoding (`habits`): its tokens have to be made whatever others were, so its own lambda*
is the one that counts, and one that is too low costs little while one that is too high rules out what pays.

**What is known.** cost(width, length) from `costs`, P from `acceptance`. Drafters that cost nothing guess first, so
their confidences are known, and they are scored whether sent or not (`shadow`). A drafter that costs
(`costly`) is asked if its typical acceptance promises more than the best ready draft; it stops by `price` when the next
level no longer pays, and what it has drawn is weighed again with its confidences. Under exactness only exact widths are
choices. Planning has a price as well: what drafts is charged with it, and it rests (`attention`) where a `routine`
brings as much: then the same drafter is sent without asking what its guesses are worth, or nobody.

**Losses** are limited by `guard`: passes that could lose more than may be lost are no choices. Drafts without cost that
it stops are only imagined until they have proved themselves (`imagined`); where it stops a drafter that seems to pay,
one draft is sent as a trial after 8, 12, 18, ... passes. A drafter that costs and does not pay is left alone and asked
for one level after 8, 9, 11, ... passes (sooner while it is not sure that it does not pay): a change is noticed after
about a seventh of the time it was left alone. While another one pays they take its place in a pass only now and then,
one after the other. All of them share what trials may cost. Reading a prompt for about a pass or longer is an
investment: made when drafts without cost have been worth less for three passes than what it might bring (a copy would
have begun), and what it is expected to bring in the passes they leave, the mean over all that this text may be, pays
back half more within the tokens still expected; without evidence it must be affordable, too.

Drafts of *rejection* and *block* condition on what is drawn, so their plan is fixed: `FixedPlan` over all drafters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from localspec.engine import shadow
from localspec.engine.acceptance import Acceptance
from localspec.engine.backoff import Backoff
from localspec.engine.bidding import ask
from localspec.engine.costly import Costly
from localspec.engine.costs import DraftCosts, PassCosts
from localspec.engine.guard import Account, usual
from localspec.engine.habits import Habits
from localspec.engine.imagined import imagine, judged
from localspec.engine.interfaces import EMPTY_DRAFT, Continuing, Draft, Drafter, DraftRequest, Outcome, Target
from localspec.engine.option import MARGIN, NEVER, Choice, best_choice
from localspec.engine.plan import FixedPlan, Review
from localspec.engine.routine import Routines
from localspec.engine.situation import Served, Situation, prices

_LOOKS = 1.0, 2.0, 64.0
"""Passes between looks at what plain decoding costs while that is in doubt: at first, growth, at last."""
_LEARNING = 0.03
"""What planning a pass with a draft is worth beside what it saves, as a share of a plain pass: only drafts that are
weighed become known."""


@dataclass(frozen=True, slots=True)
class Forced:
    """What settings leave no choice about."""

    nodes: int | None = None
    """Drafts have this many nodes, as far as drafters and exact widths allow."""
    drafting: bool = False
    """Something is drafted in every pass; how much is the plan's choice."""


class AdaptivePlan:
    """Chooses drafter, nodes and width of every pass; see the module."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        exact_widths: frozenset[int] | None,
        *,
        costs: PassCosts,
        draft_costs: MutableMapping[str, DraftCosts] | None = None,
        acceptance: Acceptance | None = None,
        account: Account | None = None,
        habits: Habits | None = None,
        longest: int = 15,
        longest_costly: int = 7,
        fixed: int = 4,
        forced: Forced | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """
        Args:
            drafters: those to choose from; the loop's drafter is all of them as one.
            exact_widths: widths a pass may have; None = any.
            costs: of the target's passes; followed from now on.
            draft_costs: by name, of the drafters that are not free; followed too, and those timed here join them.
            acceptance: what is remembered of earlier runs; followed too.
            account: what may be lost; followed too.
            habits: what is known of the requests of this pair; followed too, unless settings force drafts.
            longest: longest draft.
            longest_costly: longest of a drafter that costs something, unless a length is forced.
            fixed: draft length for the rules *rejection* and *block*.
            forced: what settings leave no choice about.
            clock: seconds, for what drafters and planning take.
        """
        self._draft_costs = timed = {} if draft_costs is None else draft_costs
        self.drafters = tuple(drafters)
        self.acceptance = acceptance or Acceptance()
        self.account = account or Account()
        """Of drafts the plan chose; nothing that settings force is booked here."""
        self.longest, self.forced = longest, forced or Forced()
        self._forces = self.forced.drafting or bool(self.forced.nodes)
        self._habits = Habits() if self._forces or habits is None else habits
        self._account = Account() if self._forces else self.account
        most = self._longest_costly = longest if self.forced.nodes else min(longest, longest_costly)
        self.costly = [
            Costly(index, one, timed.get(one.name) or DraftCosts(), self._habits.turn(one.name), most, clock)
            for index, one in enumerate(self.drafters)
            if not one.free
        ]
        self._shadows = [shadow.Shadow(index, one, clock) for index, one in enumerate(self.drafters) if one.free]
        self._continuing = [(one.index, one.drafter) for one in self._shadows if isinstance(one.drafter, Continuing)]
        self._names = tuple(one.name for one in self.drafters)
        self._routines = Routines(self._shadows, longest, exact_widths, self._habits, self._account, clock)
        self._exact, self._fixed = exact_widths, FixedPlan(fixed, exact_widths)
        self._costs = {1: costs}
        self._served: dict[int, Served] = {}
        self._look, self._attention = Backoff(*_LOOKS), self._habits.planning
        self._clock = clock
        self._now: Situation | None = None

    @property
    def costs(self) -> PassCosts:
        """Of passes of one slot."""
        return self._costs[1]

    # -- before a pass --------------------------------------------------------------------------------------------

    def draft(
        self, drafter: Drafter, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]
    ) -> list[Draft]:
        self._now = self._routines.unplanned = None
        if any(request.needs_probs for request in requests):
            return self._fixed.draft(drafter, target, requests, pending)
        if not any(one.max_nodes > 0 and any(map(one.allows, self._names)) for one in requests):
            return self._routines.draft(requests, pending, {})
        if self._routines.lulls(requests, pending):
            return self._routines.draft(requests, pending, {})
        if self._rests(requests):
            return self._routines.draft(requests, pending, {one.slot: self._served[one.slot] for one in requests})
        started = self._clock()
        self._now = now = self._situation(target, requests, pending)
        best = self._choice(now)
        worth = self._routines.weighed(now, best) + (_LEARNING * now.plain_seconds if best.nodes else 0.0)
        self._attention.planned(now.forcing or now.asked >= 0 or worth > self._attention.seconds, worth)
        if best.nodes and not (now.forcing or now.waiting) and self._look_due(now):
            best = _nothing(now)  # a look at what plain decoding costs by now
        drafts = self._send(best, target, now)
        now.planning = self._clock() - started - now.draft_seconds
        return drafts

    def _choice(self, now: Situation) -> Choice:
        """What to send in this pass."""
        account, passes = self._account, 1 + self._attention.rested
        account.scale(now.plain_seconds)
        self._habits.retry.rest(passes)
        self._habits.aside.rest(passes)
        now.retrying, now.continuing = self._habits.retry.due, self._continuing
        now.bound(math.inf if now.forcing else account.unproven)
        shadow.ask(self._shadows, now, self.longest, passes)
        for one in self.costly:
            one.rest(now, passes)
        floor = NEVER if now.forcing else 0.0
        best = best_choice(now.ready, now.affordable, now.rate, floor, now.only)
        wish = best if now.affordable is now.prices else best_choice(now.ready, now.prices, now.rate)
        if wish.nodes and not now.weak(wish):  # 0.1 ms for a request's first time, and mostly of no use
            now.may_bring = max((one.may_bring(now) for one in self.costly if one.may_guess(now)), default=0.0)
        if not any(guesser.rests for guesser in self._shadows):  # else nobody knows
            for served, pick in zip(now.served, wish.picks, strict=True):
                served.heard(1.0 if pick is None else now.left(wish))
        for guesser in self._shadows:
            guesser.weighed(wish, now)
        now.cut()
        now.bound(math.inf if now.forcing else max(account.risk, account.trials if now.retrying else 0.0))
        if now.limit > 0 and (now.plain_seconds or now.forcing) and ask(self.costly, now, best, account, self._habits):
            asked = best_choice(now.ready, now.affordable, now.rate, floor, now.only)
            best = asked if asked.value > best.value else best
        may_lose = account.open or now.retrying or (not best.paid and account.unproven > 0.0)
        if best.nodes and (best.value <= MARGIN or not may_lose):
            now.guarded = now.forcing
            best = best if now.forcing else _nothing(now)
        else:
            extra = (now.prices[best.nodes] or 0.0) - now.plain_price
            now.trial = best.paid and now.retrying and extra > account.risk
        if not now.forcing:
            imagine(now, wish, best)
        return best

    def _rests(self, requests: Sequence[DraftRequest]) -> bool:
        """Whether this pass goes unplanned (see `attention`); never the first one of a slot."""
        if self._forces or any(request.slot not in self._served for request in requests):
            return False
        active = len(requests)
        served = [self._serve(request, active) for request in requests]
        if not all(one.length for one in served):  # one begins, and lengths differ
            length = sum(len(request.history) for request in requests) // active
            self._account.scale(self._costs_of(active, active).seconds(active, length))
        return self._attention.rests(self._account.pass_seconds)

    def _look_due(self, now: Situation) -> bool:
        """Whether plain decoding's cost has become doubtful; rarer and rarer where nothing settles it."""
        self._look.rest()
        if self._costs[now.active].doubtful(now.active):
            return self._look.again()
        self._look.restart()
        return False

    def _situation(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> Situation:
        active = len(requests)
        length = sum(len(one.history) for one in requests) // active
        row = self._costs_of(active, sum(pending) + active * self.longest).row(length)
        plain = active / row[active] if row[active] else 0.0
        served = [self._serve(request, active) for request in requests]
        for one in served:
            one.begin()
        longest = self.longest
        if not self._forces:
            longest = min(longest, max([self._longest_costly, *(most for one in served for most in one.longest)]))
        limit = max(0, min(longest, max(request.max_nodes for request in requests)))
        rebuilding = self._habits.rebuild.due if active == 1 else 0.0
        by_nodes = prices(target, requests, pending, row, limit, self._exact, rebuilding)
        rate = max(plain, self._habits.rate(active).value)
        now = Situation(requests, pending, served, length, row, by_nodes, rate, rebuilding)
        now.forcing = limit > 0 and self._forces
        if now.forcing and self.forced.nodes:
            now.only = min(self.forced.nodes, limit)
            while now.only > 0 and by_nodes[now.only] is None:
                now.only -= 1
            now.forcing = now.only > 0
        return now

    def _costs_of(self, active: int, widest: int) -> PassCosts:
        costs = self._costs[active] = self._costs.get(active) or self._costs[1].copy(active)
        costs.widen(widest)
        return costs

    def _serve(self, request: DraftRequest, active: int) -> Served:
        """The request as the plan sees it; a new one begins."""
        served = self._served.get(request.slot)
        if served is None or served.history is not request.history:
            self._begin(served, request, active)
            temperature = request.sampling.temperature
            trackers = [self.acceptance.tracker(one.name, "coupled", temperature) for one in self.drafters]
            first = self._habits.first_copy
            served = self._served[request.slot] = Served(request.history, len(request.history), trackers, first)
            if self._shadows:
                served.quiet, served.quiet_passes = self._habits.quiet, 0
        return served

    def _begin(self, last: Served | None, request: DraftRequest, active: int) -> None:
        """A slot goes on to another request."""
        if last is not None:
            self._habits.ended(len(last.history) - last.start, last.quiet, last.copied)
            for tracker in last.trackers:
                tracker.close()
        for one in self.costly:
            self._account.write_off(one.begin(request.slot))
        length = len(request.history)
        plain = self._costs_of(active, active).seconds(active, length)
        self._routines.begin(request.slot, self._costs_of(1, 1 + self.longest).row(length))
        self._habits.rate(active).begin(active / plain if plain else 0.0)
        for attention in (self._attention, *(one.attention for one in self._shadows)):
            attention.begin()
        self._account.begin(1.0 / active, min(float(request.room), self._habits.answer))

    # -- drafters that are not asked any more --------------------------------------------------------------------------

    @property
    def dropped(self) -> dict[str, str]:
        """Drafters that are not asked any more, and why."""
        return {one.drafter.name: one.dropped for one in self.costly if one.dropped}

    def drop(self, reason: str) -> list[str]:
        """Drops every drafter that costs something (under memory pressure); returns their names."""
        names = [one.drafter.name for one in self.costly if not one.dropped]
        for one in self.costly:
            one.drop(reason)
        return names

    # -- the pass and what came of it -----------------------------------------------------------------------------

    def _send(self, best: Choice, target: Target, now: Situation) -> list[Draft]:
        drafts = [EMPTY_DRAFT if pick is None else pick.draft.truncated(best.nodes) for pick in best.picks]
        if now.active == 1 and not now.forcing:
            widths = [now.pending[0] + len(drafts[0])]
        else:
            slots = [request.slot for request in now.requests]
            if best.nodes:  # drafts shorter than the choice make other widths
                drafts = self._fixed.fit(target, slots, now.pending, drafts)
            rows = {slot: waiting + len(draft) for slot, waiting, draft in zip(slots, now.pending, drafts, strict=True)}
            widths = target.pass_widths(rows)
        now.drafted = any(map(len, drafts))
        # Rows that wait may be decoded one by one where nothing is drafted: no single pass to learn from.
        if len(widths) == 1 and (now.drafted or not now.waiting):
            now.width = widths[0]
        now.expected = sum(now.row[width] for width in widths) if now.drafted else now.plain_price
        return drafts

    def learn(self, drafter: Drafter, outcomes: Sequence[Outcome], seconds: float) -> Review:
        now, self._now = self._now, None
        if now is None:
            return self._routines.learn(drafter, outcomes, seconds, self._costs_of)
        for one in self.costly:
            one.drafter.observe(outcomes)
        started = self._clock()
        for guesser in self._shadows:
            guesser.observe(outcomes)
        places = {request.slot: served for request, served in zip(now.requests, now.served, strict=True)}
        tokens, hit = 0, False
        for outcome in outcomes:
            served = places[outcome.slot]
            emitted = outcome.history.tokens[served.length :].tolist()
            tokens += len(emitted)
            served.said(len(emitted))
            self._account.prove(judged(served, outcome.history))
            sent = [guesser.heard(served, outcome, emitted) for guesser in self._shadows]
            if not any(sent):
                served.sent(0, 0)
            for one in self.costly:
                served.trackers[one.index].score(served.drawn[one.index], emitted)
            for graft in served.grafts:
                graft.score(served.trackers, emitted)
            if now.asked >= 0 and emitted and len(served.drawn[now.asked]):
                hit = hit or int(served.drawn[now.asked].tokens[0]) == emitted[0]
        if now.width:
            self._routines.rebuilt(now.active, now.width, seconds, now.plain_seconds)
            self._costs[now.active].observe(now.width, now.length, seconds)
        if now.plain_seconds:
            self._book(now, tokens, seconds)
        for one in self.costly:
            if one.index == now.asked:
                one.heard(now, hit)
                if one.costs.timed:
                    self._draft_costs[one.drafter.name] = one.costs
        if now.beside and hit:
            self._habits.aside.at_once()
        self._attention.took(now.planning + self._clock() - started)
        if now.active == 1 and not self._forces:
            self._routines.planned(now.served[0])
        return Review(now.plain_seconds, guarded=now.guarded)

    def _book(self, now: Situation, tokens: int, seconds: float) -> None:
        """What the pass saved or lost; with a draft, or behind one, planning is part of it."""
        spent = usual(seconds, now.expected) + now.booked + (now.rebuilding if now.drafted else 0.0)
        plain = tokens / now.active * now.plain_seconds
        spent = spent + self._attention.seconds if now.drafted or now.draft_seconds or now.waiting else plain
        self._habits.rate(now.active).book(tokens, spent - now.invested)
        if now.trial:
            self._habits.retry.idle = 0
            (self._habits.retry.paid if plain > spent else self._habits.retry.failed)()
        left = plain - spent + now.invested
        for one in self.costly:
            if one.index == now.asked:
                left = one.repay(now, left)
        self._account.book(plain, plain - left, now.trial or now.probing)

    # -- for people -----------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """What is known, in plain data."""
        return {
            "acceptance": self.acceptance.report(),
            "dropped": self.dropped,
            "balance_seconds": round(self.account.balance, 6),
        }


def _nothing(now: Situation) -> Choice:
    return Choice(0.0, 0, [None] * now.active)
