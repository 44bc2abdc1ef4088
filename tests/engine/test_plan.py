"""`FixedPlan`: how many nodes are asked for, and what of the drafts may be sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.cascade import Cascade, Stage
from localspec.engine.adaptive import AdaptivePlan
from localspec.engine.costs import PassCosts
from localspec.engine.interfaces import EMPTY_DRAFT, Draft
from localspec.engine.loop import Loop
from localspec.engine.plan import FixedPlan
from localspec.engine.request import Request
from localspec.errors import UsageError
from localspec.types import Rule
from tests.fakes import FakeDrafter, FakeTarget, FakeVocabulary, HashModel, answer, prompt

TARGET = FakeTarget(HashModel(5), 5)
STREAMS = FakeTarget(HashModel(5), 5, streams=True)

widths_with_one = st.sets(st.integers(1, 20), max_size=8).map(lambda found: frozenset(found | {1}))


@pytest.mark.parametrize("limit", [-1, 65])
def test_limits_outside_are_refused(limit: int) -> None:
    with pytest.raises(UsageError, match=f"max_draft_tokens is {limit}"):
        FixedPlan(limit, None)


@given(limit=st.integers(0, 16), active=st.integers(1, 6))
def test_without_exactness_the_limit_is_the_limit(limit: int, active: int) -> None:
    assert FixedPlan(limit, None).max_nodes(active) == limit


@given(limit=st.integers(0, 16), active=st.integers(1, 6), exact=widths_with_one)
def test_the_longest_draft_whose_pass_is_exact(limit: int, active: int, exact: frozenset[int]) -> None:
    legal = [nodes for nodes in range(1, limit + 1) if active * (1 + nodes) in exact]
    assert FixedPlan(limit, exact).max_nodes(active) == max(legal, default=0)


def test_without_exactness_nothing_is_cut() -> None:
    drafts = [Draft.chain([1, 2, 3]), Draft.chain([4])]
    assert FixedPlan(8, None).fit(TARGET, [0, 1], [1, 1], drafts) == drafts


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
    sent = FixedPlan(8, exact).fit(target, slots, pending, drafts)

    def allowed(cut: int) -> bool:
        rows = {slot: pending[slot] + min(cut, lengths[slot]) for slot in slots}
        return set(target.pass_widths(rows)) <= exact

    cut = max((cut for cut in range(1, 9) if allowed(cut)), default=0)
    assert [draft.tokens.tolist() for draft in sent] == [list(range(min(cut, length))) for length in lengths]


def test_a_cut_tree_keeps_parents_before_children() -> None:
    tree = Draft(np.array([1, 2, 3, 4], dtype=np.int32), np.array([-1, -1, 0, 1], dtype=np.int32))
    sent = FixedPlan(8, frozenset({1, 3})).fit(TARGET, [0], [1], [tree])[0]
    assert sent.parents.tolist() == [-1, -1]


@pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.REJECTION])
@pytest.mark.parametrize("adaptive", [True, False])
def test_every_drafter_hears_of_every_pass_once(rule: Rule, adaptive: bool) -> None:
    """Planned or not, asked or not: most of these passes are not planned, for nothing is ever found."""
    drafters = [FakeDrafter(lambda _: EMPTY_DRAFT), FakeDrafter(lambda _: EMPTY_DRAFT, free=False)]
    costs = PassCosts({2: {width: 1e-6 * width for width in range(1, 17)}}, 16)
    plan = AdaptivePlan(drafters, None, costs=costs) if adaptive else FixedPlan(4, None)
    cascade = Cascade([Stage(drafter) for drafter in drafters])
    loop = Loop(FakeTarget(HashModel(5), 5), cascade, plan, FakeVocabulary(5))
    found = answer(loop, Request(prompt(1, 2, 3), rule=rule, max_tokens=40, ignore_end=True))
    for drafter in drafters:
        assert len(drafter.outcomes) == found.stats.passes == 40
    if adaptive and rule is Rule.COUPLED:
        assert len(drafters[0].requests) < 40
