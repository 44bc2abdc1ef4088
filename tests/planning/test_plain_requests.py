"""Requests that may not draft, and drafts that settings force: pass costs are learned, the guard loses nothing."""

from __future__ import annotations

import pytest

from localspec.planning.budget import LOSS_PASSES, LOSS_SHARE
from localspec.planning.plan import Forced
from tests.planning.simulator import CURVES, Process, World, make, simulate
from tests.planning.worlds import constant


def test_a_request_that_may_not_draft_costs_no_planning_and_earns_no_credit() -> None:
    world = World(CURVES["Q8_0"], {"lookup": Process.of(constant(0.9), 1), "draft": Process.of(constant(0.9), 2)})
    run = simulate(make(world), range(1))
    levels = run.guessers[-1].levels
    simulate(run, range(1, 4), limit=0)
    assert run.budget.passes == pytest.approx(LOSS_PASSES + LOSS_SHARE * 300, rel=0.01)
    assert run.guessers[-1].levels == levels
    assert set(run.widths[-900:]) == {1}
    assert sum(run.estimates[-900:]) == pytest.approx(world.plain(range(1, 4)), rel=0.05)


def test_what_forced_drafts_lose_is_not_charged_to_those_the_plan_chooses() -> None:
    world = World(CURVES["Q4_K_M"], {"draft": Process.of(constant(0.05), 2)})
    run = simulate(make(world, forced=Forced(nodes=3)), range(2))
    assert run.guarded > 0
    assert run.budget.passes == LOSS_PASSES
