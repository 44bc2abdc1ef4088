"""What is called exact by construction is exact: the bits of many architectures, each a tiny model with random weights.

The ordinary tests try a few of them, the trials all.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from localspec.llama import exactness, wide
from localspec.llama.context import Context
from localspec.llama.exactness import Exactness, by_construction
from localspec.llama.model import Model
from localspec.llama.quantize import quantize
from localspec.llama.settings import ContextSettings
from localspec.types import Feed, Float32Array, Tokens
from tests.llama import architectures
from tests.llama.architectures import DENSE, MIXED
from tests.llama.conftest import chain, same_bits

LENGTHS, WIDTHS = (60, 300, 1500), (2, 3, 4, 8, 16, 33)
"""Tokens of context, and rows of the passes after them."""
CACHED, GRIDS = (60, 300, 700), (64, 17)
"""Tokens of a prompt, and the chunks in which it is read, besides those of `ContextSettings.grid`."""
WIDEST = 34
File = Callable[[str, str], Path]
"""Of an architecture and a number format."""
pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")


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


@pytest.mark.parametrize("name", MIXED)
def test_a_mixture_of_experts_is_exact(file: File, name: str) -> None:
    assert tried(file(name, "F16"), threads=2) == Exactness(True, True, "")


@pytest.mark.parametrize("kind", ["Q5_1", "Q3_K_M", "IQ4_XS"])
def test_a_format_that_is_not_packed_is_exact_but_for_prompts(file: File, kind: str) -> None:
    said = tried(file("internlm2", kind), threads=2)
    assert (said.widths, said.prefill) == (True, False)
    assert said.reason.startswith("the product ")


def test_a_dense_model_with_an_operation_that_is_not_on_the_list_is_not(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "PER_ROW", exactness.PER_ROW - {"ROPE"})
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


@pytest.mark.trial
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["F16", "Q4_K_M"])
@pytest.mark.parametrize("name", [*DENSE, *MIXED])
def test_what_is_called_exact_is_exact(file: File, name: str, kind: str, threads: int) -> None:
    said = tried(file(name, kind), threads)
    assert said.widths
    assert said.prefill or kind != "F16"  # K-quants may have matrices that llama.cpp multiplies in prompts


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


def settings(model: Model, threads: int, grid: int = 512) -> ContextSettings:
    rollback = 0 if model.can_trim else WIDEST
    return ContextSettings(n_ctx=1700, threads=threads, max_rows=64, grid=grid, rollback=rollback)


def ordinary(context: Context) -> Tokens:
    """int32[1700] tokens, the same for every model of this vocabulary."""
    return np.random.default_rng(1).integers(64, context.n_vocab - 64, 1700).astype(np.int32)


def other_widths(context: Context) -> list[tuple[int, int]]:
    """(length, width) of the passes in which a row has other bits than in a pass of its own."""
    tokens, found = ordinary(context), []
    for length in LENGTHS:
        context.forget(0)
        alone = [row_after(context, tokens[: length + i], length) for i in range(max(WIDTHS))]
        for width in WIDTHS:
            draft = tokens[length : length + width - 1]
            (rows,) = context.decode([Feed(0, tokens[:length], length, draft, chain(width - 1))])
            if not all(same_bits(rows[i], alone[i]) for i in range(width)):
                found.append((length, width))
    return found


def other_caches(model: Model, threads: int) -> list[tuple[int, int]]:
    """(length, chunk) of the prompts that leave another cache or logits than in the widest passes; 1 = decoded."""
    expected, found = after_prompts(model, settings(model, threads), one_by_one=False), []
    for chunk in (*GRIDS, 1):
        one_by_one = chunk == 1
        options = settings(model, threads, 512 if one_by_one else chunk)
        got = after_prompts(model, options, one_by_one)
        found += [(length, chunk) for length in CACHED if got[length] != expected[length]]
    return found


def after_prompts(model: Model, options: ContextSettings, one_by_one: bool) -> dict[int, tuple[bytes, bytes]]:
    """By length: the logits behind a prompt, and the cache."""
    found: dict[int, tuple[bytes, bytes]] = {}
    with closing(Context(model, options)) as context:
        tokens, done = ordinary(context), 0
        for length in CACHED:
            if one_by_one:
                for count in range(done + 1, length):
                    context.decode([Feed(0, tokens[:count], 1)])
            else:
                context.forget(0)
            row = row_after(context, tokens[:length], 1 if one_by_one else length)
            found[length], done = (row.tobytes(), bytes(context.save(0))), length
    return found


def row_after(context: Context, tokens: Tokens, prompt_length: int) -> Float32Array:
    """The logits after these tokens, from a pass of one row behind the cached ones."""
    return np.array(context.decode([Feed(0, tokens, prompt_length)])[0][0])
