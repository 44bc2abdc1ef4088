"""What is called exact by construction is exact: the bits of many architectures, each a tiny model with random weights.

The ordinary tests try a few of them, the trials eight others every day. `python -m tests.llama.bits` tries all.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from localspec.llama.cache.context import Context
from localspec.llama.exact import choice, wide
from localspec.llama.exact.choice import Exactness, by_construction
from localspec.llama.model import Model
from tests.llama import architectures, bits
from tests.llama.bits import WIDEST, other_caches, other_threads, other_widths, settings
from tests.llama.recipes import DENSE, MIXED, NOT_MADE, RECIPES, RECURRENT
from tests.quantised import quantize

EACH_TURN = 8
"""Architectures that the trials of one day try."""
INEXACT = ("minimax-m3",)
"""Not called exact: the graph of one row is another there, or has an operation that is not on the list."""
INEXACT_PROMPTS = (*INEXACT, "grok")
"""Nor are the prompts of these: llama.cpp computes the attention of grok by large products."""
File = Callable[[str, str], Path]
"""Of a recipe and a number format."""
pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")


def of_turn(turn: int) -> list[tuple[str, int]]:
    """(recipe, threads with F16) of the trials of one day; over the days all recipes, with other threads each time."""
    names = list(RECIPES)
    places = range(turn * EACH_TURN, (turn + 1) * EACH_TURN)
    return [(names[place % len(names)], 1 + (place % len(names) + place // len(names)) % 2) for place in places]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The trials of today."""
    if "threads_with_f16" in metafunc.fixturenames:
        metafunc.parametrize(("name", "threads_with_f16"), of_turn(metafunc.config.getoption("turn")))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[File]:
    """Writes files, each once; they are gone when the module is done."""
    folder = tmp_path_factory.mktemp("architectures")

    @functools.cache
    def made(name: str, kind: str) -> Path:
        if kind == "F16":
            return architectures.write(name, folder)
        return quantize(made(name, "F16"), folder / f"{name}-{kind}.gguf", kind, threads=1)

    yield made
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["gemma2", "falcon", "bloom", "gptneox"])
def test_a_dense_model_is_exact_by_construction_and_in_truth(file: File, name: str) -> None:
    assert name in DENSE
    assert tried(file(name, "F16"), threads=1) == Exactness(True, True, "")


@pytest.mark.parametrize("name", ["qwen3moe", "granitemoe"])
def test_a_mixture_of_experts_is_exact(file: File, name: str) -> None:
    assert name in MIXED
    assert tried(file(name, "F16"), threads=1) == Exactness(True, True, "")


@pytest.mark.parametrize("name", ["qwen35", "mamba2"])
def test_a_model_with_states_is_exact_with_snapshots_and_without(file: File, name: str) -> None:
    assert name in RECURRENT
    assert tried(file(name, "F16"), threads=1) == Exactness(True, True, "")


@pytest.mark.parametrize("name", ["gemma2", "granitemoe", "mamba2", "grok"])
def test_bits_do_not_depend_on_the_number_of_threads(file: File, name: str) -> None:
    """So a pass may have fewer of them beside other programs (`llama.library.contention`)."""
    with opened(file(name, "F16"), "wide") as model:
        assert other_threads(model, (2, 3)) == []


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q2_K", "Q3_K_M", "IQ4_XS", "IQ3_S", "TQ2_0"])
def test_a_format_that_is_packed_is_exact_in_prompts_too(file: File, kind: str) -> None:
    assert tried(file("internlm2", kind), threads=2) == Exactness(True, True, "")


@pytest.mark.parametrize("kind", ["TQ1_0"])
def test_a_format_that_is_not_packed_is_exact_but_for_prompts(file: File, kind: str) -> None:
    said = tried(file("internlm2", kind), threads=2)
    assert (said.widths, said.prefill) == (True, False)
    assert said.reason.startswith("the product ")


def test_a_dense_model_with_an_operation_that_is_not_on_the_list_is_not(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "PER_ROW", choice.PER_ROW - {"ROPE"})
    said = tried(file("gemma2", "F16"), threads=2)
    assert (said.widths, said.prefill) == (False, False)
    assert said.reason.startswith("the operation ROPE (")


def test_the_comparison_can_fail(file: File) -> None:
    """With llama.cpp's own kernels, passes of some widths and prompts read in some chunks do have other bits."""
    with opened(file("gemma2", "F16"), "repacked") as model:
        with closing(Context(model, settings(model, 1))) as context:
            assert not by_construction(context, WIDEST).widths
            assert other_widths(context)
        assert other_caches(model, 1)


def test_a_file_that_ends_its_process_costs_one_row(tmp_path: Path) -> None:
    row = bits.run("no such recipe", "F16", tmp_path)
    assert (row.widths_found, row.prefill_found, row.wrong) == (None, None, False)
    assert row.error == "ended with 1: KeyError: 'no such recipe'"


def test_the_trials_of_some_days_try_every_architecture_with_one_and_two_threads() -> None:
    assert len({recipe.architecture or name for name, recipe in RECIPES.items()}) >= 44
    assert {name for name, _ in NOT_MADE}.isdisjoint(RECIPES)
    days = -(-len(RECIPES) // EACH_TURN)
    assert {name for turn in range(days) for name, _ in of_turn(turn)} == set(RECIPES)
    assert {one for turn in range(2 * days) for one in of_turn(turn)} == {(name, n) for name in RECIPES for n in (1, 2)}


@pytest.mark.trial
@pytest.mark.parametrize("kind", ["F16", "Q4_K_M"])
def test_what_is_called_exact_is_exact(file: File, name: str, kind: str, threads_with_f16: int) -> None:
    said = tried(file(name, kind), threads_with_f16 if kind == "F16" else 3 - threads_with_f16)
    if kind == "F16":  # K-quants may have matrices that llama.cpp multiplies
        assert said.widths or name in INEXACT
        assert said.prefill or name in INEXACT_PROMPTS


def tried(path: Path, threads: int) -> Exactness:
    """What is said of this file on our kernels, after what is called exact has been tried."""
    with opened(path, "wide") as model:
        with closing(Context(model, settings(model, threads))) as context:
            said = by_construction(context, WIDEST)
            assert bool(said.reason) == (not (said.widths and said.prefill))
            if said.widths:
                assert other_widths(context) == []
        if said.prefill:
            assert other_caches(model, threads) == []
    return said


def opened(path: Path, kernels: Literal["wide", "repacked"]) -> Model:
    return Model.load(path, kernels=kernels)
