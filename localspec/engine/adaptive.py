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
Dinkelbach's iteration with the passes themselves as its steps. It also says what a second is worth elsewhere: drafting
and reading pay if they bring more than lambda tokens for each second.

**What is known.** cost(width, length) from `costs`, P from `acceptance`. Drafters that cost nothing guess first, so
their confidences are known, and they are scored on every token whether sent or not. A drafter that costs (`costly`) is
asked if its typical acceptance promises more than the best ready draft; it stops by `price` when the next level no
longer pays, and what it has drawn is weighed again with its confidences. Under exactness only exact widths are choices.

**Losses** are limited by `guard`. A drafter that costs and does not pay is left alone and asked for one level after 8,
9, 11, ... passes (sooner while it is not sure that it does not pay): a change is noticed after about a seventh of the
time it was left alone, and the guard pays. Reading a long prompt is an investment: made when, by evidence, it pays
back half as much again within the tokens still expected, or when the guard can afford it.

Drafts of *rejection* and *block* condition on what is drawn, so their plan is fixed: `FixedPlan` over all drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from localspec.engine.acceptance import Acceptance
from localspec.engine.constraint import legal
from localspec.engine.costly import Costly, Offer
from localspec.engine.costs import DraftCosts, PassCosts
from localspec.engine.guard import Account
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, Drafter, DraftRequest, Outcome, Target
from localspec.engine.option import NEVER, Choice, Option, best_choice
from localspec.engine.plan import NO_REVIEW, FixedPlan, Review
from localspec.engine.situation import Served, Situation

_MARGIN = 0.01
"""Tokens a pass that a draft must promise over none: no switching for nothing."""
_RATE_MEMORY = 0.98
_OUTLIER = 0.3
"""A pass is booked as at most this share slower or faster than expected."""
_FIRST_LOOK, _LAST_LOOK = 1, 64
"""Passes between two looks at what plain decoding costs, while that is in doubt."""
_USUAL_ANSWER = 200.0
"""Tokens of an answer before any was seen."""


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
        draft_costs: Mapping[str, DraftCosts] | None = None,
        acceptance: Acceptance | None = None,
        account: Account | None = None,
        longest: int = 7,
        fixed: int = 4,
        forced: Forced | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """
        Args:
            drafters: those to choose from; the loop's drafter is all of them as one.
            exact_widths: widths a pass may have; None = any.
            costs: of the target's passes; followed from now on.
            draft_costs: by name, of the drafters that are not free; followed too.
            acceptance: what is remembered of earlier runs; followed too.
            account: what may be lost; followed too.
            longest: longest draft.
            fixed: draft length for the rules *rejection* and *block*.
            forced: what settings leave no choice about.
            clock: seconds, for what drafters take.
        """
        timed = draft_costs or {}
        self.drafters = tuple(drafters)
        self.acceptance = acceptance or Acceptance()
        self.account = account or Account()
        self.longest, self.forced = longest, forced or Forced()
        self.costly = [
            Costly(index, one, timed.get(one.name) or DraftCosts(), clock)
            for index, one in enumerate(self.drafters)
            if not one.free
        ]
        self._free = [(index, one) for index, one in enumerate(self.drafters) if one.free]
        self._exact = exact_widths
        self._fixed = FixedPlan(fixed, exact_widths)
        self._costs = {1: costs}
        self._served: dict[int, Served] = {}
        self._rates: dict[int, tuple[float, float]] = {}
        """{slots in a pass: (tokens, seconds), older ones faded}."""
        self._usual_answer = _USUAL_ANSWER
        self._since_look, self._look_wait = 0, _FIRST_LOOK
        self._now: Situation | None = None
        self._alone: tuple[int, int] | None = None
        """(rows, cached length) of a pass for which nobody may draft."""
        self._forced_account = Account()
        """What drafts that settings force save and lose; the guard only says what it thinks of them."""

    @property
    def costs(self) -> PassCosts:
        """Of passes of one slot."""
        return self._costs[1]

    # -- before a pass --------------------------------------------------------------------------------------------

    def draft(
        self, drafter: Drafter, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]
    ) -> list[Draft]:
        if any(request.needs_probs for request in requests):
            self._now = self._alone = None
            return self._fixed.draft(drafter, target, requests, pending)
        if not any(map(self._may_draft, requests)):
            length = sum(len(request.history) for request in requests) // len(requests)
            self._now, self._alone = None, (len(requests), length) if sum(pending) == len(requests) else None
            return [EMPTY_DRAFT] * len(requests)
        self._now = now = self._situation(target, requests, pending)
        account = self._account(now)
        account.scale(now.plain_seconds)
        self._ask_free(now)
        floor = NEVER if now.forcing else 0.0
        best = best_choice(now.ready, now.prices, now.rate, floor, now.only)
        for one in self.costly:
            one.rest(now)
        if now.limit > 0 and (now.plain_seconds or now.forcing) and self._ask_costly(now, best):
            best = best_choice(now.ready, now.prices, now.rate, floor, now.only)
        if best.nodes and (best.value <= _MARGIN or not account.open):
            now.guarded = now.forcing
            best = best if now.forcing else _nothing(now)
        elif best.nodes and not now.forcing and self._look_due(now):
            best = _nothing(now)  # a look at what plain decoding costs by now
        return self._send(best, target, now)

    def _may_draft(self, request: DraftRequest) -> bool:
        return request.max_nodes > 0 and any(request.allows(one.name) for one in self.drafters)

    def _account(self, now: Situation) -> Account:
        return self._forced_account if now.forcing else self.account

    def _look_due(self, now: Situation) -> bool:
        """Whether plain decoding's cost has become doubtful; rarer and rarer where nothing settles it."""
        self._since_look += 1
        if not self._costs[now.active].doubtful(now.active):
            self._look_wait = _FIRST_LOOK
            return False
        if self._since_look < self._look_wait:
            return False
        self._since_look, self._look_wait = 0, min(_LAST_LOOK, 2 * self._look_wait)
        return True

    def _situation(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> Situation:
        active = len(requests)
        length = sum(len(request.history) for request in requests) // active
        row = self._costs_of(active, sum(pending) + active * self.longest).row(length)
        limit = max(0, min(self.longest, max(request.max_nodes for request in requests)))
        prices = self._prices(target, requests, pending, row, limit)
        plain = active / row[active] if row[active] else 0.0
        tokens, seconds = self._rates.get(active, (0.0, 0.0))
        rate = max(plain, tokens / seconds) if seconds else plain
        served = [self._serve(request) for request in requests]
        now = Situation(requests, pending, served, length, row, prices, rate)
        now.forcing = limit > 0 and (self.forced.drafting or bool(self.forced.nodes))
        if now.forcing and self.forced.nodes:
            now.only = min(self.forced.nodes, limit)
            while now.only > 0 and prices[now.only] is None:
                now.only -= 1
            now.forcing = now.only > 0
        return now

    def _costs_of(self, active: int, widest: int) -> PassCosts:
        costs = self._costs.get(active) or self._costs[1].copy(active)
        self._costs[active] = costs = costs if costs.widest >= widest else costs.widened(widest + 8 * active)
        return costs

    def _serve(self, request: DraftRequest) -> Served:
        served = self._served.get(request.slot)
        if served is None or served.history is not request.history:
            if served is not None:  # its slot went on to another request
                self._usual_answer += 0.2 * (len(served.history) - served.start - self._usual_answer)
                for one in self.costly:
                    self.account.write_off(one.investment.close())
            temperature = request.sampling.temperature
            trackers = [self.acceptance.tracker(one.name, "coupled", temperature) for one in self.drafters]
            served = self._served[request.slot] = Served(request.history, len(request.history), trackers)
        served.begin()
        return served

    def _prices(
        self,
        target: Target,
        requests: Sequence[DraftRequest],
        pending: Sequence[int],
        row: list[float],
        limit: int,
    ) -> list[float | None]:
        """Seconds of the pass by nodes a slot sends; None where a width is not allowed."""
        exact = self._exact
        if len(requests) == 1:
            first = pending[0]
            return [
                row[width] if exact is None or width in exact or width == first else None
                for width in range(first, first + limit + 1)
            ]
        prices: list[float | None] = []
        for nodes in range(limit + 1):
            rows = {
                request.slot: waiting + min(nodes, max(0, request.max_nodes))
                for request, waiting in zip(requests, pending, strict=True)
            }
            widths = target.pass_widths(rows)
            allowed = exact is None or nodes == 0 or all(width in exact for width in widths)
            prices.append(sum(row[width] for width in widths) if allowed else None)
        return prices

    # -- asking drafters ------------------------------------------------------------------------------------------

    def _ask_free(self, now: Situation) -> None:
        """Their drafts; those that may guess are asked even where nothing may be sent, so that they are scored."""
        now.ready = [[] for _ in now.requests]
        if not self._free:
            return
        asked = []
        for request in now.requests:
            nodes = max(0, min(request.max_nodes, self.longest))
            asked.append(replace(request, max_nodes=nodes, max_depth=nodes))
        for index, drafter in self._free:
            places = now.places(drafter.name)
            wanted = [asked[place] for place in places]
            for place, draft in zip(places, legal(wanted, drafter.draft(wanted)), strict=True):
                if len(draft):
                    served = now.served[place]
                    served.drawn[index] = draft
                    now.ready[place].append(Option(served.trackers[index].gains(draft), draft))

    def _ask_costly(self, now: Situation, best: Choice) -> bool:
        """Asks the drafter that promises most over what is ready, or one whose turn it is to be tried."""
        found: tuple[Costly, Offer] | None = None
        probe: tuple[Costly, Offer] | None = None
        value = best.value if best.nodes else 0.0
        for one in self.costly:
            if one.dropped or not now.places(one.drafter.name):
                continue
            offer = one.offer(now)
            gain = offer.value - value
            if now.forcing and not best.nodes and found is None:
                found, value = (one, offer), offer.value
            elif gain > _MARGIN:
                if now.forcing or (
                    self.account.open and one.may_read(offer, gain, now, self.account, self._usual_answer)
                ):
                    found, value = (one, offer), offer.value
            elif not now.forcing and one.due(offer, now, self.account):
                probe = (one, offer)
        if found is not None:
            found[0].ask(found[1], now, probing=False)
        elif probe is not None:
            probe[0].ask(probe[1], now, probing=True)
        return now.asked >= 0

    @property
    def dropped(self) -> dict[str, str]:
        """Drafters that are not asked any more, and why."""
        return {one.drafter.name: one.dropped for one in self.costly if one.dropped}

    def drop(self, reason: str) -> list[str]:
        """Drops every drafter that costs something (under memory pressure); returns their names."""
        dropped = [one for one in self.costly if not one.dropped]
        for one in dropped:
            one.drop(reason)
        return [one.drafter.name for one in dropped]

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
        if len(widths) == 1 and (now.drafted or sum(now.pending) == now.active):
            now.width = widths[0]
        now.expected = sum(now.row[width] for width in widths)
        return drafts

    def learn(self, outcomes: Sequence[Outcome], seconds: float) -> Review:
        now, self._now = self._now, None
        if now is None:
            return self._learn_plain(seconds)
        places = {request.slot: served for request, served in zip(now.requests, now.served, strict=True)}
        tokens, hit = 0, False
        for outcome in outcomes:
            served = places[outcome.slot]
            emitted = outcome.history.tokens[served.length :].tolist()
            tokens += len(emitted)
            for tracker, draft in zip(served.trackers, served.drawn, strict=True):
                if len(draft):
                    tracker.score(draft, emitted)
            if now.asked >= 0 and emitted and len(served.drawn[now.asked]):
                hit = hit or int(served.drawn[now.asked].tokens[0]) == emitted[0]
        if now.width:
            self._costs[now.active].observe(now.width, now.length, seconds)
        if now.plain_seconds:
            self._book(now, tokens, seconds)
        for one in self.costly:
            if one.index == now.asked:
                one.heard(now, hit)
        return Review(now.plain_seconds, now.guarded)

    def _learn_plain(self, seconds: float) -> Review:
        """A pass for which nobody could draft: plain decoding's cost, and nothing for the guard, who had no say."""
        if self._alone is None:
            return NO_REVIEW
        rows, length = self._alone
        self._alone, costs = None, self._costs_of(rows, rows)
        costs.observe(rows, length, seconds)
        return Review(costs.seconds(rows, length))

    def _book(self, now: Situation, tokens: int, seconds: float) -> None:
        account = self._account(now)
        usual = now.expected  # outliers are nobody's fault
        spent = min((1.0 + _OUTLIER) * usual, max((1.0 - _OUTLIER) * usual, seconds)) + now.draft_seconds
        old_tokens, old_seconds = self._rates.get(now.active, (0.0, 0.0))
        self._rates[now.active] = (
            _RATE_MEMORY * old_tokens + tokens,
            _RATE_MEMORY * old_seconds + spent - now.invested,
        )
        plain = tokens / now.active * now.plain_seconds
        if not (now.drafted or now.draft_seconds):
            account.book(plain, plain)
            return
        left = plain - spent + now.invested
        for one in self.costly:
            if one.index == now.asked:
                left = one.investment.repay(left)
        account.book(plain, plain - left)

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
