"""A drafter whose guesses all come out of one pass: the plan takes the first level to cost all, the others nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from localspec.engine.interfaces import Draft, DraftRequest
from localspec.planning.costs import DraftCosts, Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan
from tests.planning.simulator import CURVES, Clock, Guesser, Process, Run, World, measured, simulate

PASS = 0.010
"""Seconds of the drafter's pass, whatever comes out of it."""


class OnePass(Guesser):
    """A draft costs what a level of others does."""

    one_pass = True

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        before = self.levels
        drafts = super().draft(requests)
        self.clock.now -= max(0, self.levels - before - 1) * self.level
        return drafts


class Unmarked(OnePass):
    one_pass = False


def run_of(kind: type[Guesser]) -> Run:
    """Three answers, and what was learned in them."""
    process = Process.of(np.full(2000, 0.5), 1)
    world = World(CURVES["GPU"], {"draft": process}, level=PASS, read=0.0002)
    clock = Clock()
    guesser = kind("draft", process, clock, PASS, world.read)
    knowledge = Knowledge(PassCosts(measured(world.curve)), {"draft": DraftCosts({1: PASS}, world.read)})
    plan = AdaptivePlan([guesser], None, knowledge, clock=clock)
    return simulate(Run(world, plan, clock, [guesser]), range(3))


def test_further_levels_cost_nothing() -> None:
    marked, unmarked = run_of(OnePass), run_of(Unmarked)
    assert marked.plan.knowledge.draft_costs["draft"].level(1) == pytest.approx(PASS, rel=0.2), "a whole draft's"
    assert np.mean(marked.widths[-100:]) > 4.0
    assert marked.seconds[-1] < 1.02 * unmarked.seconds[-1]
