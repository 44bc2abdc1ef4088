"""Estimates of what passes cost: of the right size for real shapes, and corrected by the first real passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec.gguf import read_header
from localspec.gguf.spread import spread_of
from localspec.llama.model import Model
from localspec.models.facts.shape import LayerShape, ModelShape, shape_of
from localspec.planning.costs import Knowledge
from localspec.runtime.costs import Kernels, Rates, draft_costs, kernels_of, pass_costs, pass_seconds
from tests.planning.simulator import Process, World, make, seconds, simulate

MACHINE = Rates(memory=36e9, products=0.6e12)
"""Two cores of an AVX-512 server."""


def shape(layers: int, weights: int, output: int, cache: int) -> ModelShape:
    """A dense model; sizes in bytes, `cache` in elements of a layer and token, keys and values alike."""
    each = LayerShape(weights=weights, key=cache, value=cache)
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
    costs = pass_costs(ONE_BILLION, 16, (0, 4096), "wide")
    theirs = pass_costs(ONE_BILLION, 16, (0, 4096), "llama")
    row = costs.rows(100)[0][1:]
    assert row == sorted(row)
    assert costs.seconds(1, 4000) > costs.seconds(1, 100)
    assert theirs.seconds(8, 100) / theirs.seconds(1, 100) > costs.seconds(8, 100) / costs.seconds(1, 100)


def test_the_first_pass_sets_the_scale_and_nothing_guessed_is_kept() -> None:
    costs = pass_costs(ONE_BILLION, 8, (0, 4096), "wide")
    ratio = costs.seconds(8, 100) / costs.seconds(1, 100)
    assert costs.kept() == {}
    costs.observe(1, 100, 5 * costs.seconds(1, 100))
    assert costs.seconds(1, 100) == pytest.approx(
        5 * pass_costs(ONE_BILLION, 8, (0, 4096), "wide").seconds(1, 100), rel=0.01
    )
    assert costs.seconds(8, 100) / costs.seconds(1, 100) == pytest.approx(ratio)
    assert costs.kept() == {1: (1.0, 1.0)}


def test_a_cold_first_pass_does_not_make_plain_decoding_look_slow() -> None:
    """It took five times as long as it should have; the passes after it are wider."""
    costs = pass_costs(ONE_BILLION, 8, (0, 4096), "wide")
    plain, wider = costs.seconds(1, 100), costs.seconds(4, 100)
    costs.observe(1, 100, 5 * plain)
    for _ in range(3):
        costs.observe(4, 100, wider)
    assert costs.seconds(1, 100) <= costs.seconds(4, 100) < 2 * wider


def test_a_wrong_estimate_is_corrected_by_a_few_passes() -> None:
    """Width 8 costs three times what was estimated."""
    costs = pass_costs(ONE_BILLION, 8, (0, 4096), "wide")
    plain, wide = costs.seconds(1, 100), 3 * costs.seconds(8, 100)
    for _ in range(8):
        costs.observe(1, 100, plain)
        costs.observe(8, 100, wide)
    assert costs.seconds(8, 100) / costs.seconds(1, 100) == pytest.approx(wide / plain, rel=0.2)


def test_what_was_measured_counts_at_the_next_start() -> None:
    old = pass_costs(ONE_BILLION, 8, (0, 4096), "wide")
    for _ in range(8):
        old.observe(1, 100, 0.5)
        old.observe(8, 100, 2.5)
    new = pass_costs(ONE_BILLION, 8, (0, 4096), "wide")
    assert new.seconds(8, 512) / new.seconds(1, 512) < 3.0
    new.recall(old.kept())
    assert 1 not in new.timed, "another hour, another pace"
    assert new.seconds(8, 512) / new.seconds(1, 512) == pytest.approx(5.0, rel=0.05)
    assert new.seconds(6, 512) / new.seconds(1, 512) > 2.5, "widths between them follow"


def test_a_prompt_says_what_a_row_costs() -> None:
    """46 rows took 26 plain passes: rows cost more than was estimated. That counts once a plain pass was timed."""
    costs = pass_costs(ONE_BILLION, 8, (0, 4096), "wide")
    before = costs.seconds(8, 46) / costs.seconds(1, 46)
    costs.observe_prompt(46, 0, 0.26)
    assert costs.seconds(8, 46) / costs.seconds(1, 46) == pytest.approx(before)
    costs.observe(1, 46, 0.010)
    assert costs.seconds(8, 46) / costs.seconds(1, 46) > 1.5 * before
    gpu = pass_costs(ONE_BILLION, 8, (0, 4096), "gpu")
    before = gpu.seconds(8, 46) / gpu.seconds(1, 46)
    gpu.observe(1, 46, 0.010)
    gpu.observe_prompt(46, 0, 0.26)
    assert gpu.seconds(8, 46) / gpu.seconds(1, 46) == pytest.approx(before), "other kernels read it"


def test_a_gpu_s_estimates_are_nearly_flat_up_to_a_step_after_8_rows() -> None:
    row = pass_costs(ONE_BILLION, 16, (0, 4096), "gpu").rows(100)[0]
    assert row[1:] == sorted(row[1:])
    assert row[8] < 1.5 * row[1]
    assert row[9] > 1.9 * row[8]


def over_best(kernels: Kernels, step: float, chance: float) -> tuple[float, int]:
    """(speed over that of the best fixed choice, passes of more than 8 rows) on a fake GPU whose passes of up to 8 rows
    cost 5 ms and wider ones `step` times that, with estimates of such kernels at the start.
    """

    def curve(width: int, length: int) -> float:
        return 0.005 * (step if width > 8 else 1.0)

    world = World(curve, {"lookup": Process.of(np.full(2400, chance), 1, spread=0.05)})
    knowledge = Knowledge(pass_costs(ONE_BILLION, 16, (0, 4096), kernels))
    run = simulate(make(world, knowledge), range(6), seed=3)
    best, _ = world.best_fixed(range(6), longest=15)
    return best / seconds(run, range(6)), sum(width > 8 for width in run.widths)


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.93])
@pytest.mark.parametrize("step", [1.8, 3.0, 5.0])
def test_a_step_after_8_rows_leads_to_no_drafts_that_lose(step: float, chance: float) -> None:
    reached, beyond = over_best("gpu", step, chance)
    assert reached >= 0.87
    assert beyond <= 30 or step < 2.0


def test_estimates_of_other_kernels_are_corrected() -> None:
    """They promise too little of a GPU's flat rows."""
    assert over_best("llama", 3.0, 0.6)[0] >= 0.87


def test_who_computes_passes(tiny_target: Path) -> None:
    size = shape_of(read_header(tiny_target))
    found = []
    for layers, moved in ((0, 0), (-1, 0), (size.n_layers + 1, 0), (size.n_layers, 0), (-1, 1)):
        with Model.load(tiny_target, gpu_layers=layers, spread=spread_of("layer", None, moved)) as model:
            found.append(kernels_of(model, size))
    assert found == ["llama", "gpu", "gpu", "llama", "llama"]


def test_a_draft_model_costs_less_than_its_target(tiny_target: Path, tiny_draft: Path) -> None:
    target, draft = shape_of(read_header(tiny_target)), shape_of(read_header(tiny_draft))
    level = draft_costs(draft, "wide").level(1)
    assert 0.0 < level < pass_costs(target, 8, (0, 4096), "wide").seconds(1, 100)
    assert draft_costs(draft, "wide").read_seconds > 0.0
