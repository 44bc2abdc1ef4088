"""Tree or chain: a tree brings more a pass, and what is accepted beside its main chain is decoded once more."""

from __future__ import annotations

import time

import numpy as np
import pytest

from localspec.drafters.cascade import Cascade
from localspec.engine import shadow
from localspec.engine.acceptance import Acceptance, Table, Tracker
from localspec.engine.adaptive import AdaptivePlan
from localspec.engine.costs import PassCosts
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Outcome, Verdict
from localspec.engine.option import best_choice
from localspec.engine.situation import Served, Situation, prices
from localspec.types import LogitRows, Noise, SamplingParams
from tests.fakes import FakeDrafter, FakeTarget, HashModel, Script, prompt

SURE, UNSURE = 0.55, 0.45
FORKED = Draft(prompt(1, 2, 3, 4), prompt(-1, -1, 0, 1), None, np.array([SURE, UNSURE, SURE, SURE], np.float32), "f")
CHAIN = Draft(prompt(1, 3, 5, 6), prompt(-1, 0, 1, 2), None, np.array([SURE] * 4, np.float32), "f")


def taught(sure: float, unsure: float) -> Tracker:
    """One that has seen how often these two confidences are right, whatever the depth."""
    tracker = Tracker(Table())
    rng = np.random.default_rng(0)
    for depth in range(1, 9):
        for confidence, chance in ((SURE, sure), (UNSURE, unsure)):
            for hit in (rng.permutation(400) < 400 * chance).tolist():
                tracker.table.learn(confidence, depth, hit)
    return tracker


def test_siblings_exclude_each_other_and_a_row_that_is_decoded_again_is_paid_for() -> None:
    gains = taught(0.6, 0.5).gains(FORKED)
    assert gains == pytest.approx([0.0, 0.6, 0.6 + 0.4 * 0.5, 0.8 + 0.36, 1.16 + 0.2 * 0.6], abs=0.02)
    dear = taught(0.6, 0.5).gains(FORKED, again=0.5)
    assert dear == pytest.approx([0.0, 0.6, 0.6 + 0.1, 0.7 + 0.36, 1.06 + 0.06], abs=0.02)
    assert taught(0.6, 0.5).gains(CHAIN, again=0.5) == taught(0.6, 0.5).gains(CHAIN), "a chain stays cached"


def situation(row: list[float], sure: float, unsure: float) -> Situation:
    """One request, plain decoding's rate, two free shapes."""
    model = HashModel(8)
    request = DraftRequest(0, History([1, 2]), 4, 4, SamplingParams(), Noise(1))
    target = FakeTarget(model, 8)
    served = Served(request.history, 2, [taught(sure, unsure)])
    served.begin()
    by_nodes = prices(target, [request], [1], row, 4, None)
    now = Situation([request], [1], [served], 2, row, by_nodes, 1.0 / row[1])
    guesser = FakeDrafter(lambda asked: CHAIN if asked.chain else FORKED)
    shadow.ask([shadow.Shadow(0, guesser, time.perf_counter)], now, 4)
    return now


@pytest.mark.parametrize(
    ("row", "sure", "unsure", "expected"),
    [
        ([0.0, 1.0, 1.01, 1.02, 1.03, 1.04], 0.5, 0.9, FORKED),
        ([0.0, 1.0, 1.01, 1.02, 1.03, 1.04], 0.95, 0.1, CHAIN),
        ([0.0, 1.0, 1.4, 1.45, 1.5, 4.0], 0.5, 0.9, CHAIN),
    ],
    ids=["rows are nearly free", "the first guess is nearly always right", "rows of the next pass are dear"],
)
def test_the_plan_takes_the_shape_that_is_worth_more(
    row: list[float], sure: float, unsure: float, expected: Draft
) -> None:
    now = situation(row, sure, unsure)
    (options,) = now.ready
    assert len(options) == 2
    best = best_choice(now.ready, now.prices, now.rate)
    assert best.picks[0] is not None
    assert best.picks[0].draft is expected
    assert now.served[0].drawn[0] is FORKED, "the tree is what is scored"


def test_waiting_rows_of_a_width_that_is_not_exact_are_decoded_one_by_one() -> None:
    request = DraftRequest(0, History([1, 2]), 2, 2, SamplingParams(), Noise(1))
    row = [0.0, 1.0, 1.1, 1.2, 1.3, 1.4]
    target = FakeTarget(HashModel(8), 8)
    assert prices(target, [request], [3], row, 2, frozenset({1, 4})) == [3.0, 1.3, None]
    assert prices(target, [request], [1], row, 2, frozenset({1, 2})) == [1.0, 1.1, None]


ROW = {width: 0.9 + 0.1 * width for width in range(1, 40)}
TARGET = FakeTarget(HashModel(8), 8)


def planned(script: Script, exact: frozenset[int] | None = None) -> AdaptivePlan:
    """With a drafter of that script, whose guesses are known to be right."""
    acceptance = Acceptance()
    for _ in range(400):
        acceptance.tracker("scripted", "coupled", 0.0).table.learn(SURE, 1, True)
    costs = PassCosts({2: ROW}, 39)
    return AdaptivePlan([FakeDrafter(script)], exact, costs=costs, acceptance=acceptance, clock=lambda: 0.0)


def asked(plan: AdaptivePlan, history: History, pending: int) -> Draft:
    request = DraftRequest(0, history, 7, 7, SamplingParams(temperature=0.0), Noise(1))
    return plan.draft(Cascade([]), TARGET, [request], [pending])[0]


@pytest.mark.parametrize(("exact", "seconds"), [(None, 1.2), (frozenset({1, 2}), 3.0)])
def test_what_is_decoded_again_is_booked_where_nothing_is_drafted_either(
    exact: frozenset[int] | None, seconds: float
) -> None:
    plan, history = planned(lambda request: EMPTY_DRAFT, exact), History([1, 2])
    assert asked(plan, history, pending=3) is EMPTY_DRAFT
    history.append([1])
    rows = LogitRows.from_matrix(np.zeros((1, 8), dtype=np.float32))
    plan.learn(Cascade([]), [Outcome(0, history, EMPTY_DRAFT, Verdict(prompt(), 1), rows)], seconds)
    assert (plan.account.plain, plan.account.spent) == pytest.approx((1.0, seconds))


def test_a_tree_that_was_right_to_its_end_lets_the_next_draft_be_longer() -> None:
    tree = Draft(prompt(1, 2, 1, 1, 1), prompt(-1, -1, 0, 2, 3), None, np.full(5, SURE, np.float32), "scripted")
    plan, history = planned(lambda request: tree), History([1, 2])
    asked(plan, history, pending=1)
    history.append([1, 1, 1, 1, 3])
    rows = LogitRows.from_matrix(np.zeros((6, 8), dtype=np.float32))
    plan.learn(Cascade([]), [Outcome(0, history, tree, Verdict(prompt(0, 2, 3, 4), 3), rows)], ROW[6])
    assert plan._served[0].longest == [2 * 4 + 1]


def test_what_passes_with_rows_that_wait_cost_is_learned_where_it_is_kept() -> None:
    kept = PassCosts({2: {1: 1.0, 8: 1.7}}, 8)
    plan = AdaptivePlan([FakeDrafter(lambda request: EMPTY_DRAFT)], None, costs=kept, clock=lambda: 0.0)
    asked(plan, History([1, 2]), pending=3)
    assert plan.costs is kept
    assert kept.widest >= 3 + 15


def test_plain_decoding_is_not_looked_at_where_rows_wait() -> None:
    guess = Draft.chain([1, 1], None, np.full(2, SURE, dtype=np.float32), "scripted")
    plan, history = planned(lambda request: guess), History([1, 2])
    plan.costs._drift_then[1] = 0.0  # its last pass was a surprise
    assert len(asked(plan, history, pending=3)) == 2
    assert len(asked(plan, history, pending=1)) == 0, "a look"
    assert len(asked(plan, history, pending=1)) == 2
