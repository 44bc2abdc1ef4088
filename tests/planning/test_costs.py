"""What passes are believed to cost, whatever they took: finite, ordered, and never forbidding."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.planning.costs import PassCosts

WIDEST = 33


@pytest.mark.parametrize("seed", range(40))
def test_passes_of_any_length_leave_finite_costs(seed: int) -> None:
    """Times over nine orders of magnitude, as a machine that sleeps and wakes gives them. Warnings are errors."""
    random = np.random.default_rng(seed)
    costs = PassCosts(
        {64: {width: 0.001 * (1.0 + 0.06 * width) for width in range(1, WIDEST)}}, estimated=True, prompt_row=0.8
    )
    spread = random.choice([0.1, 1.0, 5.0])
    for _ in range(400):
        width = int(random.choice([1, 1, 1, *range(2, WIDEST)]))
        seconds = 0.001 * math.exp(random.normal(0.0, spread))
        if random.random() < 0.05:
            costs.observe_prompt(width * 8, 0, seconds, delayed=seconds / 2)
        costs.observe(width, int(random.integers(4096)), seconds)
        row, feared = costs.rows(int(random.integers(4096)))
        assert all(0.0 < one < math.inf for one in row[1:])
        assert row[1:] == sorted(row[1:])
        assert all(
            one <= two <= max(one, width * row[1]) * 1.0001
            for width, (one, two) in enumerate(zip(row, feared, strict=True))
        )
