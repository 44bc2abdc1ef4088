"""Wide kernels beside llama.cpp's; costs and bits are scripted, so no library is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.llama import decision, lib
from localspec.llama.choice import load_draft_model
from localspec.llama.configuration import ALL_KERNELS
from localspec.llama.settings import ContextSettings
from tests.llama.scripted_choice import ALL, BF16, F16, OFF, ONE, Q8, WIDE, World


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_wide_kernels_that_win_are_taken_without_looking_further(
    with_wide: World, start: Callable[..., str], mode: str
) -> None:
    first = start(mode, kernels=ALL_KERNELS)
    assert first == "exact: F16 cache, wide kernels (costs less than llama.cpp's default)"
    assert (with_wide.examined, with_wide.measured) == ([WIDE], 1)
    before = with_wide.count()
    with_wide.costs[WIDE], with_wide.exact = 9.0, {}
    assert start(mode, kernels=ALL_KERNELS) == first
    assert with_wide.count() == (before[0] + 1, before[1] + 1, *before[2:])


@pytest.mark.parametrize(
    ("cost", "exact", "mode", "words"),
    [
        (0.8, {WIDE: ONE, BF16: ALL}, "auto", "inexact: F16 cache, wide kernels (the cheapest exact one costs 30%"),
        (0.98, {WIDE: ONE, BF16: ALL}, "auto", "exact: F16 keys, BF16 values, repacked weights (costs 6%"),
        (0.8, {WIDE: ONE}, "auto", "inexact: F16 cache, wide kernels (no exact configuration that can draft"),
        (1.09, {WIDE: ALL}, "auto", "exact: F16 cache, wide kernels (costs 9% more"),
        (1.09, {WIDE: ALL, F16: ALL}, "auto", "exact: F16 cache, repacked weights (costs 0%"),
        (1.29, {WIDE: ALL}, "auto", "inexact: F16 cache, repacked weights (the cheapest exact one costs 29%"),
        (1.29, {WIDE: ALL, Q8: ALL}, "strict", "exact: F16 cache, wide kernels (costs 29%"),
        (1.31, {WIDE: ALL, Q8: ALL}, "strict", "exact: Q8_0 cache, repacked weights (costs 30%"),
    ],
)
def test_wide_kernels_compete_like_the_others(
    with_wide: World,
    start: Callable[..., str],
    cost: float,
    exact: dict[str, frozenset[int] | None],
    mode: str,
    words: str,
) -> None:
    others: dict[str, frozenset[int] | None] = {F16: ONE, BF16: ONE, Q8: ONE, OFF: ONE, f"{F16} plain": ONE}
    with_wide.costs[WIDE], with_wide.exact = cost, others | exact
    assert start(mode, kernels=ALL_KERNELS).startswith(words)
    assert with_wide.examined[0] == WIDE
    assert with_wide.most_loaded <= 2


def test_a_budget_used_up_by_wide_kernels_is_not_exceeded(with_wide: World, start: Callable[..., str]) -> None:
    with_wide.exact = {BF16: ALL}
    late = start(kernels=ALL_KERNELS, budget=1.0)  # an examination takes a second in this world
    assert late == "inexact: F16 cache, wide kernels (no exact configuration was found in time)"
    assert (with_wide.examined, with_wide.measured) == ([WIDE], 1)
    assert start("strict", kernels=ALL_KERNELS, budget=1.0).startswith("exact: F16 keys, BF16 values, repacked")


def test_off_takes_the_faster_default_and_remembers_it(with_wide: World, start: Callable[..., str]) -> None:
    assert start("off", kernels=ALL_KERNELS) == "inexact: F16 cache, wide kernels (exactness is off)"
    with_wide.costs[WIDE] = 3.0
    assert start("off", kernels=ALL_KERNELS) == "inexact: F16 cache, wide kernels (exactness is off)"
    assert start("off") == "inexact: F16 cache, repacked weights (exactness is off)"
    assert with_wide.measured == 1
    assert with_wide.examined == []


def test_wide_kernels_are_for_models_on_the_cpu(with_wide: World, start: Callable[..., str]) -> None:
    words = "inexact: F16 cache, repacked weights (exactness is off)"
    assert start("off", kernels=ALL_KERNELS, gpu_layers=1) == words
    assert start("off", kernels=["repacked", "wide"]).startswith("inexact: F16 cache, wide")
    assert start("off", kernels=["wide"]).startswith("inexact: F16 cache, wide")
    with_wide.exact[f"{F16} plain"] = ALL
    assert start("strict", kernels=["plain"]).startswith("exact: F16 cache, plain")


def test_without_wide_kernels_others_are_decided_on(with_wide: World, start: Callable[..., str]) -> None:
    with_wide.exact[BF16] = ALL
    assert start(kernels=ALL_KERNELS).startswith("exact: F16 cache, wide")
    assert start().startswith("exact: F16 keys, BF16 values, repacked")
    assert start(kernels=ALL_KERNELS).startswith("exact: F16 cache, wide")


def test_costs_of_different_hours_are_not_compared(with_wide: World, start: Callable[..., str]) -> None:
    with_wide.exact[BF16] = ALL
    start("off", kernels=ALL_KERNELS)  # measures wide and the default
    start()  # measures llama.cpp's four
    assert with_wide.measured == 2
    with_wide.costs[WIDE] = 2.0
    assert start("strict", kernels=ALL_KERNELS).startswith("exact: F16 keys, BF16 values, repacked weights (costs 4%")
    assert with_wide.measured == 4  # wide and the default again, then all
    start("strict")
    assert with_wide.measured == 4


def test_where_two_copies_do_not_fit_one_is_loaded_at_a_time(
    with_wide: World, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lib, "available_bytes", lambda: 2 * 1024 * 1024)
    assert start(kernels=ALL_KERNELS).startswith("exact: F16 cache, wide")
    assert with_wide.most_loaded == 1
    assert with_wide.measured == 2


def test_a_draft_model_is_not_weighed_at_every_start_of_a_machine_that_is_never_quiet(
    with_wide: World, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "cpus", SimpleNamespace(asleep=True))
    loads = []
    for _ in range(13):
        before, settings = with_wide.loads, ContextSettings(n_ctx=640, threads=1, grid_prefill=False)
        load_draft_model(tiny_draft, settings, may_be_wide=True, cache_dir=tmp_path).close()
        loads.append(with_wide.loads - before)
    assert loads == [2] * 12 + [1], "with both kinds of kernels, as long as nothing is decided"


@pytest.mark.parametrize(
    ("cost", "may_be_wide", "kernels"), [(0.9, True, "wide"), (1.1, True, "repacked"), (0.9, False, "repacked")]
)
def test_a_draft_model_is_wide_where_one_row_is_no_slower(
    with_wide: World, tiny_draft: Path, tmp_path: Path, cost: float, may_be_wide: bool, kernels: str
) -> None:
    with_wide.costs[WIDE] = cost
    for _ in range(2):  # the second time from disk
        settings = ContextSettings(n_ctx=640, threads=1, grid_prefill=False)
        loaded = load_draft_model(tiny_draft, settings, may_be_wide=may_be_wide, cache_dir=tmp_path)
        assert loaded.kernels == kernels
        loaded.close()
        with_wide.costs[WIDE] = 1.0 / cost
    assert with_wide.measured == int(may_be_wide)
