"""A real model through localspec_wide: right, the same bits whatever the pass looks like, and nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Float32Array, Tokens
from tests.llama.conftest import chain, same_bits

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")


@pytest.fixture(scope="module")
def wide_model(tiny_target: Path) -> Iterator[Model]:
    with Model.load(tiny_target, kernels="wide") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def long_text(wide_model: Model) -> Tokens:
    """int32[1600] ordinary tokens."""
    return np.random.default_rng(3).integers(64, wide_model.n_vocab - 64, 1600).astype(np.int32)


def _context(model: Model, **settings: object) -> Context:
    return Context(model, ContextSettings(**{"n_ctx": 2048, "threads": 1, **settings}))  # type: ignore[arg-type]


def _row(context: Context, tokens: Tokens, prompt: int, slot: int = 0) -> Float32Array:
    """The logits after `tokens`, from a pass of one row behind what the cache holds."""
    return np.array(context.decode([Feed(slot, tokens, prompt)])[0][0])


def test_logits_are_llama_cpps_but_for_rounding(model: Model, wide_model: Model, long_text: Tokens) -> None:
    ours, theirs = (_context(loaded, n_ctx=512) for loaded in (wide_model, model))
    for count in (1, 40, 300):
        left, right = (_row(context, long_text[:count], count) for context in (ours, theirs))
        assert np.isfinite(left).all()
        assert not same_bits(left, right)  # or the switch does nothing
        assert np.abs(left - right).max() < 0.05 * np.abs(right).max()
    ours.close()
    theirs.close()


def test_greedy_text(model: Model, wide_model: Model) -> None:
    """An ordinary sentence goes on as with llama.cpp's kernels, for as long as one token is clearly the best."""
    prompt = np.array(model.tokenize("Once upon a time there was", special=False, add_bos=True), np.int32)
    contexts = [_context(loaded, n_ctx=128) for loaded in (wide_model, model)]
    tokens, compared = prompt, 0
    for _ in range(40):
        ours, theirs = (_row(context, tokens, len(prompt)) for context in contexts)
        second, best = np.sort(theirs)[-2:]
        if best - second > 0.5:
            compared += 1
            assert ours.argmax() == theirs.argmax()
        tokens = np.append(tokens, np.int32(theirs.argmax()))
    assert compared > 10
    for context in contexts:
        context.close()


def test_bits_do_not_depend_on_width_or_threads(wide_model: Model, long_text: Tokens) -> None:
    first: dict[int, list[Float32Array]] = {}
    for threads in (1, 2):
        context = _context(wide_model, threads=threads)
        for length in (100, 255, 513, 1500):
            context.prefill(0, long_text[:length], length)
            one_by_one = [_row(context, long_text[: length + i], length) for i in range(32)]
            expected = first.setdefault(length, one_by_one)
            assert all(same_bits(*pair) for pair in zip(one_by_one, expected, strict=True))
            for width in (2, 3, 4, 5, 6, 7, 8, 16, 32):
                draft = long_text[length : length + width - 1]
                (rows,) = context.decode([Feed(0, long_text[:length], length, draft, chain(width - 1))])
                assert [same_bits(rows[i], expected[i]) for i in range(width)] == [True] * width, (
                    threads,
                    length,
                    width,
                )
        context.close()


def test_bits_of_a_tree(wide_model: Model, long_text: Tokens) -> None:
    """The main chain has the bits of plain decoding, and so has a side branch, whose cells lie further on."""
    length, history = 300, long_text[:300]
    main, side = long_text[300:304], long_text[310:313]
    nodes, parents = np.concatenate([main, side]), np.array([-1, 0, 1, 2, 0, 4, 5], np.int32)
    context = _context(wide_model, max_leaves=4, threads=2)
    (rows,) = context.decode([Feed(0, history, length, nodes, parents)])
    found = [np.array(rows[i]) for i in range(8)]
    for count in range(5):
        alone = _row(context, np.concatenate([history, main[:count]]), length)
        assert same_bits(found[count], alone)
    for count in range(1, 4):
        alone = _row(context, np.concatenate([history, main[:1], side[:count]]), length)
        assert same_bits(found[4 + count], alone)
    context.close()


def test_bits_of_several_slots(wide_model: Model, long_text: Tokens) -> None:
    lengths, drafts = (80, 260, 131), (4, 0, 6)
    together = _context(wide_model, n_slots=3, threads=2, n_ctx=512)
    alone = _context(wide_model, n_ctx=512)
    feeds = [
        Feed(slot, long_text[slot : slot + length], length, long_text[900 : 900 + nodes], chain(nodes))
        for slot, (length, nodes) in enumerate(zip(lengths, drafts, strict=True))
    ]
    found = [[np.array(rows[i]) for i in range(len(rows))] for rows in together.decode(feeds)]
    for feed, rows in zip(feeds, found, strict=True):
        alone.forget(0)
        for i, row in enumerate(rows):
            history = np.concatenate([feed.tokens, feed.draft_tokens[:i]])
            assert same_bits(_row(alone, history, len(feed.tokens)), row)
    together.close()
    alone.close()


def test_mapped_or_read(tiny_target: Path, wide_model: Model, long_text: Tokens) -> None:
    """Mapped files are set tensor by tensor and packed then; read ones lie there plain until the first pass."""
    mapped = _context(wide_model, n_ctx=256)
    expected = _row(mapped, long_text[:50], 50)
    mapped.close()
    for threads in (1, 2):
        with Model.load(tiny_target, kernels="wide", use_mmap=False) as model:
            context = _context(model, n_ctx=256, threads=threads)
            assert same_bits(_row(context, long_text[:50], 50), expected)
            context.close()


def test_two_contexts_in_two_threads(tiny_target: Path, wide_model: Model, long_text: Tokens) -> None:
    """Weights that were read into place: both find them plain and want to pack them."""
    alone = _context(wide_model, n_ctx=256)
    expected = [_row(alone, long_text[: 30 + i], 30) for i in range(20)]
    alone.close()
    wrong: list[int] = []
    with Model.load(tiny_target, kernels="wide", use_mmap=False) as model:
        contexts = [_context(model, n_ctx=256, threads=2) for _ in range(2)]

        def work(context: Context) -> None:
            for i, row in enumerate(expected):
                if not same_bits(_row(context, long_text[: 30 + i], 30), row):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(context,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for context in contexts:
            context.close()
    assert wrong == []


def _resident() -> int:
    """Bytes of memory of this process that are in use; what malloc keeps for later is given back first."""
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_and_freeing_leaves_nothing(tiny_target: Path, long_text: Tokens) -> None:
    def once(use_mmap: bool) -> None:
        with Model.load(tiny_target, kernels="wide", use_mmap=use_mmap) as model:
            context = _context(model, n_ctx=256, threads=2)
            _row(context, long_text[:50], 50)
            context.close()

    for i in range(5):
        once(bool(i % 2))
    before = _resident()
    for i in range(20):
        once(bool(i % 2))
    assert _resident() - before < 6 << 20  # about what one model takes


def test_flash_attention_that_llama_cpp_decides_on(wide_model: Model) -> None:
    """It gives fused attention up when another device than the layer's would take it in its first graph."""
    api, mark = lib.api(), lib.log.mark()
    params = api.llama_context_default_params()
    params.n_ctx, params.n_threads = 256, 1
    assert params.flash_attn_type == -1
    with wide.switched(wide.MOST_ROWS):
        handle = api.llama_init_from_model(wide_model.handle, params)
    api.llama_free(handle)
    lines = [line for _, line in lib.log.since(mark) if "Flash Attention" in line]
    assert [line.split(": ")[-1] for line in lines] == ["Flash Attention enabled"]


def test_without_the_switch_a_model_is_llama_cpps(tiny_target: Path) -> None:
    mark = lib.log.mark()
    with Model.load(tiny_target), wide.switched(0):
        pass
    assert not [line for _, line in lib.log.since(mark) if " wide model buffer" in line]
    with Model.load(tiny_target, kernels="wide"):
        pass
    assert [line for _, line in lib.log.since(mark) if " wide model buffer" in line]
