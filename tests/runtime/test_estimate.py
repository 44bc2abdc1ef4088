"""Estimates of what passes cost: of the right size for real shapes, and corrected by the first real passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.gguf import read_header
from localspec.models.shape import Layer, ModelShape, shape_of
from localspec.planning.costs import PassCosts
from localspec.runtime.estimate import Rates, draft_costs, pass_costs, pass_seconds

MACHINE = Rates(memory=36e9, products=0.6e12)
"""Two cores of an AVX-512 server."""


def shape(layers: int, weights: int, output: int, cache: int) -> ModelShape:
    """A dense model; sizes in bytes, `cache` in elements of a layer and token, keys and values alike."""
    each = Layer(weights=weights, key=cache, value=cache)
    return ModelShape("x", "llama", (each,) * layers, 2048, 32000, output, output, False, False, 4096, False)


ONE_BILLION = shape(22, 46_000_000, 70_000_000, 256)
"""The shape of a 1 B model in Q8_0."""


@pytest.mark.parametrize(
    ("width", "length", "measured"),
    [(1, 128, 0.033), (2, 128, 0.037), (4, 128, 0.041), (8, 128, 0.056), (1, 3584, 0.050)],
)
def test_estimates_are_near_what_was_measured(width: int, length: int, measured: float) -> None:
    """1 B in Q8_0 on two cores with AVX-512, wide kernels."""
    assert pass_seconds(ONE_BILLION, width, length, MACHINE) == pytest.approx(measured, rel=0.35)


def test_wider_and_longer_passes_cost_more_and_llama_cpps_rows_most() -> None:
    costs = pass_costs(ONE_BILLION, 16, (0, 4096), ours=True)
    theirs = pass_costs(ONE_BILLION, 16, (0, 4096), ours=False)
    row = costs.row(100)[1:]
    assert row == sorted(row)
    assert costs.seconds(1, 4000) > costs.seconds(1, 100)
    assert theirs.seconds(8, 100) / theirs.seconds(1, 100) > costs.seconds(8, 100) / costs.seconds(1, 100)


def test_the_first_pass_sets_the_scale_and_nothing_guessed_is_kept() -> None:
    costs = pass_costs(ONE_BILLION, 8, (0, 4096), ours=True)
    ratio = costs.seconds(8, 100) / costs.seconds(1, 100)
    assert costs.measured() == {0: {}, 4096: {}}
    costs.observe(1, 100, 5 * costs.seconds(1, 100))
    assert costs.seconds(1, 100) == pytest.approx(5 * pass_costs(ONE_BILLION, 8, (0, 4096), ours=True).seconds(1, 100))
    assert costs.seconds(8, 100) / costs.seconds(1, 100) == pytest.approx(ratio)
    assert set(costs.measured()[0]) == {1}


def test_a_cold_first_pass_does_not_make_plain_decoding_look_slow() -> None:
    """It took five times as long as it should have; the passes after it are wider."""
    costs = pass_costs(ONE_BILLION, 8, (0, 4096), ours=True)
    plain, wider = costs.seconds(1, 100), costs.seconds(4, 100)
    costs.observe(1, 100, 5 * plain)
    for _ in range(3):
        costs.observe(4, 100, wider)
    assert costs.seconds(1, 100) <= costs.seconds(4, 100) < 2 * wider


def test_a_wrong_estimate_is_corrected_by_a_few_passes() -> None:
    """Width 8 costs three times what was estimated."""
    costs = pass_costs(ONE_BILLION, 8, (0, 4096), ours=True)
    plain, wide = costs.seconds(1, 100), 3 * costs.seconds(8, 100)
    for _ in range(8):
        costs.observe(1, 100, plain)
        costs.observe(8, 100, wide)
    assert costs.seconds(8, 100) / costs.seconds(1, 100) == pytest.approx(wide / plain, rel=0.2)


def test_what_was_measured_counts_at_the_next_start() -> None:
    old = pass_costs(ONE_BILLION, 8, (0, 4096), ours=True)
    old.observe(1, 100, 0.5)
    new = pass_costs(ONE_BILLION, 8, (0, 4096), ours=True)
    new.recall(PassCosts(old.measured()))
    assert new.seconds(1, 100) == pytest.approx(0.5)
    assert new.seconds(8, 100) == pytest.approx(old.seconds(8, 100)), "the others follow, in their ratios"


def test_a_draft_model_costs_less_than_its_target(tiny_target: Path, tiny_draft: Path) -> None:
    target, draft = shape_of(read_header(tiny_target)), shape_of(read_header(tiny_draft))
    level = draft_costs(draft, ours=True).level(1)
    assert 0.0 < level < pass_costs(target, 8, (0, 4096), ours=True).seconds(1, 100)
    assert draft_costs(draft, ours=True).read_seconds > 0.0
