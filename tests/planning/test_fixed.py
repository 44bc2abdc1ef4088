"""`FixedPlan`: how many nodes are asked for, and what of the drafts may be sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.interfaces import EMPTY_DRAFT, Draft, History, Request
from localspec.engine.loop import Loop
from localspec.errors import UsageError
from localspec.planning.costs import Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan, FixedPlan, fitting
from localspec.types import Noise, Rule, SamplingParams, SparseProbs
from tests.fakes import FakeDrafter, FakeTarget, FakeVocabulary, HashModel, answer, draft_request, prompt

TARGET = FakeTarget(HashModel(5), 5)
STREAMS = FakeTarget(HashModel(5), 5, streams=True)

widths_with_one = st.sets(st.integers(1, 20), max_size=8).map(lambda found: frozenset(found | {1}))


@pytest.mark.parametrize("limit", [-1, 65])
def test_limits_outside_are_refused(limit: int) -> None:
    with pytest.raises(UsageError, match=f"max_draft_tokens is {limit}"):
        FixedPlan((), limit, None)


@given(limit=st.integers(0, 16), active=st.integers(1, 6))
def test_without_exactness_the_limit_is_the_limit(limit: int, active: int) -> None:
    assert FixedPlan((), limit, None).max_nodes(active) == limit


@given(limit=st.integers(0, 16), active=st.integers(1, 6), exact=widths_with_one)
def test_the_longest_draft_whose_pass_is_exact(limit: int, active: int, exact: frozenset[int]) -> None:
    legal = [nodes for nodes in range(1, limit + 1) if active * (1 + nodes) in exact]
    assert FixedPlan((), limit, exact).max_nodes(active) == max(legal, default=0)


def test_without_exactness_nothing_is_cut() -> None:
    drafts = [Draft.chain([1, 2, 3]), Draft.chain([4])]
    assert fitting(TARGET, [0, 1], [1, 1], drafts, None) == drafts


@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    extra=st.integers(0, 3),
    exact=widths_with_one,
    streams=st.booleans(),
)
def test_what_is_sent_runs_in_exact_widths_or_not_at_all(
    lengths: list[int], extra: int, exact: frozenset[int], streams: bool
) -> None:
    target = STREAMS if streams else TARGET
    drafts = [Draft.chain(range(length)) for length in lengths]
    slots, pending = list(range(len(lengths))), [1 + extra] + [1] * (len(lengths) - 1)
    sent = fitting(target, slots, pending, drafts, exact)

    def allowed(cut: int) -> bool:
        rows = {slot: pending[slot] + min(cut, lengths[slot]) for slot in slots}
        return set(target.pass_widths(rows)) <= exact

    cut = max((cut for cut in range(1, 9) if allowed(cut)), default=0)
    assert [draft.tokens.tolist() for draft in sent] == [list(range(min(cut, length))) for length in lengths]


def test_a_cut_tree_keeps_parents_before_children() -> None:
    tree = Draft(np.array([1, 2, 3, 4], dtype=np.int32), np.array([-1, -1, 0, 1], dtype=np.int32))
    sent = fitting(TARGET, [0], [1], [tree], frozenset({1, 3}))[0]
    assert sent.parents.tolist() == [-1, -1]


@pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.REJECTION])
@pytest.mark.parametrize("adaptive", [True, False])
def test_every_drafter_hears_of_every_pass_once(rule: Rule, adaptive: bool) -> None:
    """Planned or not, asked or not: most of these passes are not planned, for nothing is ever found."""
    drafters = [FakeDrafter(lambda _: EMPTY_DRAFT), FakeDrafter(lambda _: EMPTY_DRAFT, free=False)]
    costs = PassCosts({2: {width: 1e-6 * width for width in range(1, 17)}})
    plan = AdaptivePlan(drafters, None, Knowledge(costs)) if adaptive else FixedPlan(drafters, 4, None)
    loop = Loop(FakeTarget(HashModel(5), 5), plan, FakeVocabulary(5))
    found = answer(loop, Request(prompt(1, 2, 3), rule=rule, max_tokens=40, ignore_end=True))
    for drafter in drafters:
        assert len(drafter.outcomes) == found.stats.passes == 40
    if adaptive and rule is Rule.COUPLED:
        assert len(drafters[0].requests) < 40


# -- several drafters, in their order --------------------------------------------------------------------------------


def says(token: int, confidence: float | None = None, probs: bool = False) -> FakeDrafter:
    """Guesses this token."""
    score = None if confidence is None else np.full(1, confidence, dtype=np.float32)
    drawn_from = (SparseProbs(prompt(token), np.ones(1)),) if probs else None
    return FakeDrafter(lambda request: Draft.chain([token], drawn_from, score, "says"))


def silent() -> FakeDrafter:
    return FakeDrafter(lambda request: EMPTY_DRAFT)


def asked(plan: FixedPlan, slots: int = 1) -> list[list[int]]:
    """Tokens of the drafts."""
    requests = [draft_request(slot, History([1]), 4, 4, SamplingParams(), Noise(1)) for slot in range(slots)]
    return [draft.tokens.tolist() for draft in plan.draft(STREAMS, requests, [1] * slots).drafts]


@pytest.mark.parametrize(
    ("drafters", "threshold", "token"),
    [
        ([says(1), says(2)], 0.0, 1),
        ([silent(), says(2)], 0.0, 2),
        ([says(1, 2.9), says(2)], 3.0, 2),
        ([says(1, 3.0), says(2)], 3.0, 1),
        ([says(1), says(2)], 3.0, 1),
        ([says(1, 0.1, probs=True), says(2)], 3.0, 1),
    ],
    ids=["first", "next if silent", "next if unsure", "sure enough", "no score", "drawn: never dropped"],
)
def test_the_first_draft_that_is_good_enough_is_sent(drafters: list[FakeDrafter], threshold: float, token: int) -> None:
    """A draft drawn for *rejection* may not be dropped for what was drawn: that would change the distribution."""
    assert asked(FixedPlan(drafters, 4, None, {"scripted": threshold})) == [[token]]


def test_only_requests_without_a_draft_are_asked_on() -> None:
    first = FakeDrafter(lambda request: Draft.chain([1]) if request.slot == 1 else EMPTY_DRAFT)
    second, third = says(2), says(3)
    assert asked(FixedPlan([first, second, third], 4, None), 3) == [[2], [1], [2]]
    assert [request.slot for request in second.requests] == [0, 2]
    assert third.requests == []


def test_a_drafter_that_was_dropped_is_not_asked() -> None:
    plan = FixedPlan([says(1)], 4, None)
    plan.drop("scripted", "it failed")
    assert asked(plan) == [[]]
    assert plan.dropped == {"scripted": "it failed"}
