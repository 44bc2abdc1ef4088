"""Paired ratios and their intervals, against what is known and against trials."""

from __future__ import annotations

import math
import random

import pytest

from localspec.checks.compare import ratio, t_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (20, 2.086), (120, 1.980)]
)
def test_student_t(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=0.005)


def test_the_ratio_is_that_of_the_sums() -> None:
    found = ratio([[(4.0, 2.0)], [(10.0, 10.0)]])
    assert found is not None
    assert found.value == 14.0 / 12.0
    assert (found.smallest, found.largest, found.over) == (1.0, 2.0, "prompts")


def test_rounds_that_agree_leave_no_doubt_and_one_run_says_nothing() -> None:
    sure = ratio([[(2.0, 1.0), (2.0, 1.0)], [(3.0, 2.0), (3.0, 2.0)]])
    assert sure is not None
    assert (sure.low, sure.value, sure.high, sure.over) == (5 / 3, 5 / 3, 5 / 3, "rounds")
    single = ratio([[(2.0, 1.0)]])
    assert single is not None
    assert single.over == ""
    assert single.half_width == math.inf
    assert ratio([[], []]) is None


def test_a_machine_that_drifts_widens_nothing() -> None:
    """Both sides of a pair slow down together."""
    steady = ratio([[(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)]])
    assert steady is not None
    assert steady.value == 2.0
    assert steady.half_width < 1e-9


@pytest.mark.parametrize(("prompts", "rounds", "noise"), [(4, 3, 0.05), (6, 2, 0.2), (1, 5, 0.1)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(prompts: int, rounds: int, noise: float) -> None:
    rng, held, trials = random.Random(5), 0, 1500
    lengths = [rng.uniform(1.0, 5.0) for _ in range(prompts)]
    speeds = [rng.uniform(0.8, 2.5) for _ in range(prompts)]
    truth = sum(lengths) / sum(length / speed for length, speed in zip(lengths, speeds, strict=True))
    for _ in range(trials):
        pairs = [
            [(length * rng.gauss(1.0, noise / 3), length / speed * rng.gauss(1.0, noise / 3)) for _ in range(rounds)]
            for length, speed in zip(lengths, speeds, strict=True)
        ]
        found = ratio(pairs)
        assert found is not None
        assert found.over == "rounds"
        held += found.low <= truth <= found.high
    assert 0.92 < held / trials < 0.98
