"""Several drafters that cost something at once: heads beside a draft model, of which few or none are any good."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.engine.simulator import CURVES, Price, Process, Run, World, make, simulate

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


def seconds(run: Run, answers: range) -> float:
    tokens = run.world.answer
    start = run.seconds[answers.start * tokens - 1] if answers.start else 0.0
    return run.seconds[answers.stop * tokens - 1] - start


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
    given = world(curve, chances)
    run = simulate(make(given), ANSWERS, seed=7)
    best, name = given.best_fixed(LATER)
    assert best / seconds(run, LATER) >= 0.95, f"the best is {name}"
    assert given.plain(ANSWERS) / seconds(run, ANSWERS) >= 0.98


@pytest.mark.parametrize("curve", ["Q8_0", "wide passes"])
def test_six_useless_ones_cost_no_more_than_one(curve: str) -> None:
    given = world(curve, dict.fromkeys(["draft", *PRICES], 0.03))
    run = simulate(make(given), ANSWERS, seed=7)
    assert given.plain(ANSWERS) / seconds(run, ANSWERS) >= 0.98
    first = range(1)
    assert given.plain(first) / seconds(run, first) >= 0.95, "an answer of 300 tokens"


def test_what_one_pass_guesses_whole_is_drafted_as_far_as_it_pays() -> None:
    """Behind the first level further ones are free, and known to be after a while."""
    given = world("GPU", {"pard": 0.85})
    run = simulate(make(given), ANSWERS)
    (one,) = run.plan.costly
    assert one.costs.further < 0.15
    assert one.costs.level_seconds(1, 128) == pytest.approx(PRICES["pard"].first, rel=0.3)
    assert np.mean(run.widths[-100:]) > 6
