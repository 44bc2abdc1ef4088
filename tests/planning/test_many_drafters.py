"""Several drafters that cost something at once: heads beside a draft model, of which few or none are any good."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from localspec.planning.budget import LOOK_SHARE, LOSS_PASSES, LOSS_SHARE
from localspec.planning.costs import READING_ALLOWANCE, Knowledge, PassCosts
from tests.planning.simulator import (
    CURVES,
    Price,
    Process,
    World,
    make,
    measured,
    regret,
    seconds,
    simulate,
)

ANSWERS, WARM = range(6), 2
LATER = range(WARM, ANSWERS.stop)
PLACES = ANSWERS.stop * 300 + 400
PRICES = {
    "eagle3": Price(0.0012, 0.0012, 0.0001),
    "mtp": Price(0.0015, 0.0015, 0.0001),
    "medusa": Price(0.0003, 0.00001),
    "mlp": Price(0.0004, 0.0004),
    "pard": Price(0.004, 0.00001, 0.0002),
}


def world(curve: str, chances: Mapping[str, float]) -> World:
    processes = {
        name: Process.of(np.full(PLACES, chance), seed) for seed, (name, chance) in enumerate(chances.items(), 3)
    }
    return World(CURVES[curve], processes, others=PRICES)


@pytest.mark.parametrize("curve", ["Q8_0", "wide passes"])
@pytest.mark.parametrize(
    "chances",
    [
        {"draft": 0.5, "eagle3": 0.75, "medusa": 0.45},
        {"draft": 0.7, "eagle3": 0.3, "mtp": 0.3, "medusa": 0.2, "mlp": 0.3, "pard": 0.3},
        {"lookup": 0.2, "draft": 0.5, "pard": 0.7},
        {"medusa": 0.55, "mlp": 0.5},
    ],
    ids=["the second is best", "one of six", "all levels at once", "nearly free"],
)
def test_the_best_of_several_is_found(chances: dict[str, float], curve: str) -> None:
    """On Q8_0's curve a failed draft costs most of what an answer may lose; of six the first ones asked may take it."""
    given = world(curve, chances)
    run = simulate(make(given), ANSWERS, seed=7)
    best, name = given.best_fixed(LATER)
    short = curve == "Q8_0" or len(chances) == 6
    assert best / seconds(run, LATER) >= (0.84 if short else 0.95), f"the best is {name}"
    assert given.plain(ANSWERS) / seconds(run, ANSWERS) >= 0.98
    found = regret(run, ANSWERS)
    assert found.lowest >= (0.7 if len(chances) == 6 else 0.8)
    assert found.mean >= (0.87 if short else 0.9)


@pytest.mark.parametrize("curve", ["Q8_0", "wide passes"])
def test_six_useless_ones_cost_no_more_than_one(curve: str) -> None:
    given = world(curve, dict.fromkeys(["draft", *PRICES], 0.03))
    run = simulate(make(given), ANSWERS, seed=7)
    one = simulate(make(world(curve, {"draft": 0.03})), ANSWERS, seed=7)
    assert seconds(run, ANSWERS) <= 1.02 * seconds(one, ANSWERS)
    tokens = len(ANSWERS) * given.answer
    limit = tokens * (1.0 + LOSS_SHARE + LOOK_SHARE) + len(ANSWERS) * LOSS_PASSES + READING_ALLOWANCE
    assert tokens / limit <= given.plain(ANSWERS) / seconds(run, ANSWERS)
    first = range(1)
    passes = (READING_ALLOWANCE + LOSS_PASSES) / given.answer
    allowed = (1.0 + LOSS_SHARE + passes) * given.plain(first)
    assert seconds(run, first) <= 1.01 * allowed


@pytest.mark.parametrize("order", [("draft", "eagle3"), ("eagle3", "draft")], ids="-".join)
def test_one_that_gets_better_is_found_while_another_one_pays(order: tuple[str, str]) -> None:
    chances = {"draft": np.full(PLACES, 0.5), "eagle3": np.where(np.arange(PLACES) < 700, 0.2, 0.9)}
    processes = {name: Process.of(chances[name], seed) for seed, name in enumerate(order, 3)}
    given = World(CURVES["wide passes"], processes, others=PRICES)
    run = simulate(make(given), ANSWERS, seed=7)
    last = range(4, 6)
    best, name = given.best_fixed(last)
    assert name.startswith("eagle3")
    assert best / seconds(run, last) >= 0.93
    early = range(1, 2)
    assert given.best_fixed(early)[0] / seconds(run, early) >= 0.93, "trials of the other one are rare"


def test_a_head_nobody_timed_is_tried_behind_a_long_prompt_and_what_it_costs_is_remembered() -> None:
    given = World(CURVES["wide passes"], {"eagle3": Process.of(np.full(PLACES, 0.85), 3)}, prompt=800, others=PRICES)
    knowledge = Knowledge(PassCosts(measured(given.curve)))
    run = simulate(make(given, knowledge), ANSWERS, seed=7)
    assert given.best_fixed(LATER)[0] / seconds(run, LATER) >= 0.93
    price = PRICES["eagle3"]
    timed = knowledge.draft_costs["eagle3"]
    assert timed.level(1) == pytest.approx(price.first, rel=0.2)
    assert timed.read_seconds == pytest.approx(price.read, rel=0.3)
