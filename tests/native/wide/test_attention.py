"""Fused attention: right beside float64 and llama.cpp's own, and the same bits however the work is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.llama.exact import wide
from tests.native.wide import attention
from tests.native.wide.attention import BF16, F16, F32, Q8_0, SCALAR, Cache, Floats, Inputs, attend, encode, exact

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")

BLOCK = 256
"""Cells that are softened together (WIDE_CELLS)."""


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def causal(rows: int, cells: int, window: int = 1 << 30) -> np.ndarray[Any, np.dtype[np.float16]]:
    """float16[1, 1, rows, cells]: the last row sees up to the last cell, each row at most `window` cells."""
    place = np.arange(cells) - (np.arange(rows) + cells - rows)[:, None]
    return np.where((place <= 0) & (place > -window), 0, -np.inf).astype(np.float16)[None, None]


def make(rng: np.random.Generator, rows: int = 3, cells: int = 300, size: int = 64, **other: Any) -> Inputs:
    """Random inputs with a causal mask; `heads` is (heads, kv heads), `types` of keys and values."""
    heads, kv_heads = other.get("heads", (4, 2))
    streams, types, spread = other.get("streams", 1), other.get("types", (F16, F16)), other.get("spread", 1.0)
    kv_streams = other.get("kv_streams", streams)
    q = rng.normal(0, spread, (streams, rows, heads, size)).astype(np.float32)
    k = encode(types[0], rng.normal(size=(kv_streams, cells, kv_heads, size)))
    v = encode(types[1], rng.normal(size=(kv_streams, cells, kv_heads, other.get("value_size", size))))
    return Inputs(q, k, v, causal(rows, cells), size**-0.5)


def bits(x: Floats) -> bytes:
    return x.tobytes()


def _large_scores(rng: np.random.Generator) -> Inputs:
    return make(rng, spread=100.0)


def _dominated(rng: np.random.Generator) -> Inputs:
    x = make(rng, cells=600)
    x.k.raw[:, 411] = encode(F16, np.full((1, 1, 2, 64), 40.0)).raw[0, 0]
    x.k.values[:, 411] = 40.0
    return replace(x, q=np.abs(x.q))


def _one_cell_seen(rng: np.random.Generator) -> Inputs:
    x = make(rng, cells=700)
    mask = np.full_like(x.mask, -np.inf)
    mask[0, 0, [0, 1, 2], [699, 0, 256]] = 0
    return replace(x, mask=mask)


def _nothing_seen(rng: np.random.Generator) -> Inputs:
    x = make(rng, cells=700)
    assert x.mask is not None
    x.mask[0, 0, 1] = -np.inf
    return x


def _finite_mask(rng: np.random.Generator) -> Inputs:
    x = make(rng, cells=700)
    return replace(x, mask=rng.normal(0, 3, x.mask.shape).astype(np.float16) if x.mask is not None else None)


def _biased(rng: np.random.Generator, heads: int) -> Inputs:
    x = make(rng, rows=5, cells=400, heads=(heads, heads))
    distance = (np.arange(400) - (np.arange(5) + 395)[:, None]).astype(np.float32)
    return replace(x, mask=np.where(distance > 0, -np.inf, distance).astype(np.float16)[None, None], max_bias=8.0)


def _mask_by_head(rng: np.random.Generator) -> Inputs:
    x = make(rng, heads=(8, 2), streams=4)
    mask = np.where(rng.random((2, 4, 3, 300)) < 0.5, -np.inf, 0).astype(np.float16)
    return replace(x, mask=mask)


CASES: dict[str, Callable[[np.random.Generator], Inputs]] = {
    "plain": make,
    "no mask": lambda rng: replace(make(rng), mask=None),
    "one row, many cells": lambda rng: make(rng, rows=1, cells=1500),
    "one cell": lambda rng: make(rng, rows=1, cells=1),
    "many rows": lambda rng: make(rng, rows=70, cells=520, heads=(2, 1)),
    "large scores": _large_scores,
    "one cell dominates": _dominated,
    "one cell seen": _one_cell_seen,
    "a row sees nothing": _nothing_seen,
    "finite mask": _finite_mask,
    "window": lambda rng: replace(make(rng, rows=9, cells=900), mask=causal(9, 900, window=70)),
    "mask by head and stream": _mask_by_head,
    "biased": lambda rng: _biased(rng, 8),
    "biased, heads no power of two": lambda rng: _biased(rng, 6),
    "soft cap": lambda rng: replace(make(rng, spread=20.0), soft_cap=30.0),
    "soft cap, small scores": lambda rng: replace(make(rng, spread=0.1), soft_cap=50.0),
    "sinks": lambda rng: replace(make(rng), sinks=np.array([-3, 0, 2, 9], np.float32)),
    "sinks, nothing seen": lambda rng: replace(_nothing_seen(rng), sinks=np.array([-3, 0, 2, 9], np.float32)),
    "group of 1": lambda rng: make(rng, heads=(3, 3)),
    "group of 8": lambda rng: make(rng, heads=(8, 1)),
    "group of 71": lambda rng: make(rng, heads=(71, 1)),
    "size 16": lambda rng: make(rng, size=16),
    "size 80": lambda rng: make(rng, size=80),
    "size 96": lambda rng: make(rng, size=96),
    "size 128": lambda rng: make(rng, size=128),
    "size 192, values 128": lambda rng: make(rng, size=192, value_size=128),
    "size 256": lambda rng: make(rng, size=256),
    "size 576, values 512": lambda rng: make(rng, size=576, value_size=512, heads=(2, 1)),
    "streams": lambda rng: make(rng, streams=3),
    "Q8_0": lambda rng: make(rng, types=(Q8_0, Q8_0)),
    "Q8_0, size 96": lambda rng: make(rng, size=96, types=(Q8_0, Q8_0)),
    "BF16": lambda rng: make(rng, types=(BF16, BF16)),
    "F32": lambda rng: make(rng, types=(F32, F32)),
    "F32, size 256": lambda rng: make(rng, size=256, types=(F32, F32)),
    "Q8_0 keys, F16 values": lambda rng: make(rng, types=(Q8_0, F16)),
    "F16 keys, BF16 values": lambda rng: make(rng, types=(F16, BF16)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_further_from_float64_than_llama_cpp(name: str, rng: np.random.Generator) -> None:
    x = CASES[name](rng)
    want, ours, theirs = exact(x), attend(x, threads=2), attention.by_ggml(x)
    size = float(np.abs(want).max())
    ours_off, theirs_off = (float(np.abs(got - want).max()) for got in (ours, theirs))
    assert ours_off <= max(theirs_off, 4e-7 * size)
    assert theirs_off <= 0.05 * size, "the comparison itself is wrong"


@pytest.mark.parametrize("name", CASES)
def test_instruction_sets_give_the_same_bits(name: str, rng: np.random.Generator) -> None:
    x = CASES[name](rng)
    found = {isa: bits(attend(x, isa)) for isa in attention.isas()}
    assert SCALAR in found
    assert set(found.values()) == {found[SCALAR]}


def test_fewer_streams_of_cells_than_of_rows(rng: np.random.Generator) -> None:
    x = make(rng, streams=4, kv_streams=2)
    np.testing.assert_allclose(attend(x), exact(x), atol=2e-6)


@pytest.mark.parametrize("types", [(F16, F16), (Q8_0, Q8_0)], ids=["F16", "Q8_0"])
def test_width_of_the_pass_and_place_in_it_change_no_bit(types: tuple[int, int], rng: np.random.Generator) -> None:
    x = make(rng, rows=512, cells=900, heads=(8, 2), types=types)
    whole = attend(x, threads=2)
    for width in range(1, 34):
        start = int(rng.integers(0, 512 - width))
        rows = slice(start, start + width)
        assert bits(attend(x.rows(rows), threads=2)) == bits(whole[:, rows]), f"rows {rows}"


def test_every_row_alone_gives_the_bits_of_a_long_pass(rng: np.random.Generator) -> None:
    x = make(rng, rows=130, cells=600, heads=(6, 2), size=80)
    whole = attend(x)
    for row in range(130):
        assert bits(attend(x.rows(slice(row, row + 1)))) == bits(whole[:, row : row + 1]), f"row {row}"


@pytest.mark.parametrize("rows", [1, 8, 70])
def test_number_of_threads_changes_no_bit(rows: int, rng: np.random.Generator) -> None:
    x = make(rng, rows=rows, cells=1100, heads=(6, 3), streams=2)
    alone = bits(attend(x, threads=1))
    assert [bits(attend(x, threads=n)) == alone for n in (2, 3, 5, 16)] == [True] * 4


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_masked_cells_behind_change_no_bit(rows: int, rng: np.random.Generator) -> None:
    x = make(rng, rows=rows, cells=300)
    plain = bits(attend(x))
    for cells in (301, 304, 511, 512, 513, 768, 1024, 2048):
        assert bits(attend(x.cells(cells), threads=2)) == plain, f"{cells} cells"


def test_whatever_lies_in_cells_that_no_row_sees(rng: np.random.Generator) -> None:
    x = make(rng, rows=4, cells=1000)
    assert x.mask is not None
    hidden = np.r_[10:20, 256:512, 700:960]
    x.mask[..., hidden] = -np.inf
    plain = bits(attend(x))
    for filling in (np.nan, np.inf, -np.inf, 6e4, 0.0):
        half = np.full(1, filling, np.float16).view(np.uint8)
        k, v = (Cache(F16, c.raw.copy(), c.values) for c in (x.k, x.v))
        for cache in (k, v):
            cache.raw[:, hidden] = np.tile(half, 64)
        assert bits(attend(replace(x, k=k, v=v))) == plain, f"{filling}"


def test_an_infinite_value_reaches_only_rows_that_see_it(rng: np.random.Generator) -> None:
    x = make(rng, rows=3, cells=300)
    assert x.mask is not None
    x.mask[0, 0, :2, 120] = -np.inf
    plain = attend(x)
    v = Cache(F16, x.v.raw.copy(), x.v.values)
    v.raw[:, 120] = np.tile(np.full(1, np.inf, np.float16).view(np.uint8), 64)
    got = attend(replace(x, v=v))
    assert bits(got[:, :2]) == bits(plain[:, :2])
    assert np.isinf(got[:, 2]).all()


def test_a_row_does_not_depend_on_what_the_others_see(rng: np.random.Generator) -> None:
    x = make(rng, rows=6, cells=800)
    assert x.mask is not None
    x.mask[...] = np.where(rng.random(x.mask.shape) < 0.9, -np.inf, 0)
    whole = attend(x)
    for row in range(6):
        assert bits(attend(x.rows(slice(row, row + 1)))) == bits(whole[:, row : row + 1])


def test_rows_that_see_nothing_are_zeros(rng: np.random.Generator) -> None:
    x = _nothing_seen(rng)
    assert bits(attend(x)[:, 1]) == bytes(4 * 4 * 64)
    assert bits(attend(replace(x, sinks=np.zeros(4, np.float32)))[:, 1]) == bytes(4 * 4 * 64)


@pytest.mark.parametrize("rows", [3, 70])
def test_a_query_that_is_no_number_gives_none(rows: int, rng: np.random.Generator) -> None:
    x = make(rng, rows=rows, cells=600)
    plain = attend(x)
    x.q[0, 1] = np.nan
    for isa in attention.isas():
        got = attend(x, isa)
        assert np.isnan(got[0, 1]).all()
        assert bits(np.delete(got, 1, 1)) == bits(np.delete(plain, 1, 1))


def test_sinks_that_weigh_nothing_change_no_bit(rng: np.random.Generator) -> None:
    x = make(rng)
    assert bits(attend(replace(x, sinks=np.full(4, -1e4, np.float32)))) == bits(attend(x))


@pytest.mark.parametrize("kind", [F16, Q8_0, BF16, F32])
def test_strides_and_addresses_may_be_odd(kind: int, rng: np.random.Generator) -> None:
    x = make(rng, types=(kind, kind))
    out = attention.empty_output(x)
    call = attention.describe(x, out)
    keep = []
    for name, head, cell in (("k", 7, 31), ("v", 2, 13)):
        raw = getattr(x, name).raw
        streams, cells, heads, size = raw.shape
        memory = np.full((streams, cells, heads * (size + head) + cell), 0xFF, np.uint8)
        flat = np.concatenate([np.zeros(1, np.uint8), memory.reshape(-1)])
        view = np.lib.stride_tricks.as_strided(
            flat[1:], raw.shape, (memory.strides[0], memory.strides[1], size + head, 1)
        )
        view[...] = raw
        keep.append(flat)
        setattr(call, name, flat[1:].ctypes.data)
        setattr(call, f"{name}_cell", memory.strides[1])
        setattr(call, f"{name}_head", size + head)
    mask = np.full((x.q.shape[1] + 2, 317), np.nan, np.float16)
    assert x.mask is not None
    mask[: x.q.shape[1], 1:301] = x.mask[0, 0]
    call.mask, call.mask_row = mask[:, 1:].ctypes.data, mask.strides[0]
    heads_first = np.ascontiguousarray(x.q.transpose(0, 2, 1, 3))
    call.q, call.q_row, call.q_head = heads_first.ctypes.data, heads_first.strides[2], heads_first.strides[1]
    assert attention.run(call) == attention.DONE
    assert bits(out) == bits(attend(x))


@pytest.mark.parametrize(
    "field",
    [
        {"head_size": 72},
        {"head_size": 0},
        {"head_size": 592},
        {"value_size": 24},
        {"k_type": 2},
        {"v_type": 99},
        {"k_type": Q8_0, "head_size": 48},
        {"heads": 5},
        {"kv_heads": 0},
        {"rows": 0},
        {"cells": 0},
        {"streams": 3, "kv_streams": 2},
        {"scale": float("nan")},
        {"mask_heads": 0},
        {"mask": None, "max_bias": 8.0},
    ],
    ids=str,
)
def test_declines_what_it_does_not_know(field: dict[str, Any], rng: np.random.Generator) -> None:
    x = make(rng)
    call = attention.describe(x, attention.empty_output(x))
    for name, value in field.items():
        setattr(call, name, value)
    assert attention.run(call) == attention.NOT_TAKEN


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    draw = data.draw
    types = draw(st.tuples(*[st.sampled_from([F16, Q8_0, BF16, F32])] * 2))
    sizes = [32 * draw(st.integers(1, 4)) if kind == Q8_0 else 16 * draw(st.integers(1, 9)) for kind in types]
    kv_heads, rows, cells = draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.integers(1, 600))
    heads = kv_heads * draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    x = make(rng, rows, cells, sizes[0], value_size=sizes[1], types=types, heads=(heads, kv_heads))
    hidden = draw(st.floats(0, 1))
    mask = np.where(rng.random((1, 1, rows, cells)) < hidden, -np.inf, rng.normal(size=(1, 1, rows, cells)))
    x = replace(x, mask=mask.astype(np.float16), soft_cap=draw(st.sampled_from([0.0, 5.0])))
    whole = attend(x, threads=2)
    np.testing.assert_allclose(whole, exact(x), atol=4e-6)
    row = draw(st.integers(0, rows - 1))
    assert bits(attend(x.rows(slice(row, row + 1)).cells(cells + 300))) == bits(whole[:, row : row + 1])
