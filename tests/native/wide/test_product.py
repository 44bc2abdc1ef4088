"""Matrix products: right, no worse than llama.cpp's, and the same bits at every width, place, number of threads and on
every instruction set."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.llama.exact import wide
from tests.native.wide import products
from tests.native.wide.products import (
    ISAS,
    QUANTISED,
    TILE,
    TYPES,
    Bytes,
    Doubles,
    Floats,
    columns_of,
    number,
    pack,
    product,
    real,
    weights,
)

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")

HERE = products.isas()
each_isa = pytest.mark.parametrize("isa", HERE, ids=[ISAS[isa] for isa in HERE])
each_type = pytest.mark.parametrize("kind", TYPES)


@functools.cache
def _matrix(kind: str, rows: int = 3 * TILE, columns: int = 512) -> tuple[Bytes, Bytes]:
    """Random weights: as in a file, and packed."""
    raw = weights(kind, rows, columns, np.random.default_rng(columns + rows))
    return raw, pack(kind, columns, raw)


PAIRS = [isa for isa in HERE if products.rounds_to_bf16(isa)]


def _prepared(kind: str, x: Floats, isa: int) -> Doubles:
    """float64: what the products see of x. Quantised types: blocks of 32 in steps of a 127th of the largest."""
    if kind == "BF16" and isa in PAIRS:
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    if kind not in QUANTISED:
        return x.astype(np.float64)
    blocks = x.reshape(len(x), -1, 32)
    top = np.abs(blocks).max(axis=2, keepdims=True)
    lift = np.where(top < 2.0**-60, np.float32(2.0**64), np.float32(1))
    inverse = np.float32(127) / np.where(top > 0, top * lift, np.float32(1))
    scale = top * lift / np.float32(127) / lift
    return np.asarray(np.rint(blocks * lift * inverse).astype(np.float64) * scale).reshape(x.shape)


def _magnitudes(kind: str, raw: Bytes) -> Doubles:
    """float64[rows, columns]: how large the numbers are whose sum or difference is a weight."""
    values = np.abs(real(kind, raw))
    minima = raw.reshape(len(raw), -1, products.block(kind)[1]).copy()
    if kind in ("Q4_K", "Q5_K"):
        minima[:, :, 16:] = 0
    elif kind in ("Q4_1", "Q5_1"):
        minima[:, :, 4:] = 0
    elif kind == "Q2_K":
        minima[:, :, 16:80] = 0
    else:
        return values
    return np.asarray(values + 2 * np.abs(real(kind, minima.reshape(len(raw), -1))))


def _inputs(width: int, columns: int) -> dict[str, Floats]:
    """Ordinary and extreme rows."""
    rng = np.random.default_rng(width)
    normal = rng.standard_normal((width, columns)).astype(np.float32)
    outlier = normal.copy()
    outlier[:, ::32] *= 1000
    powers = rng.integers(-3, 4, (width, columns // 32)).repeat(32, axis=1).astype(np.float32)
    return {
        "normal": normal,
        "one outlier in a block": outlier,
        "scales from 1e-3 to 1e3": normal * np.float32(10) ** powers,
        "scales from 1e-24 to 1e24": normal * np.float32(10) ** (8 * powers),
        "huge": normal * np.float32(1e30),
        "tiny": normal * np.float32(1e-36),
        "subnormal": normal * np.float32(1e-42),
        "all equal": np.full((width, columns), 0.37, np.float32),
        "zeros": np.zeros((width, columns), np.float32),
        "some zero blocks": normal * (np.arange(columns) // 32 % 2).astype(np.float32),
    }


@each_isa
@each_type
@pytest.mark.parametrize("name", _inputs(1, 32))
def test_close_to_float64(kind: str, isa: int, name: str) -> None:
    """Only rounding in float32 separates a product from one in float64 of what it sees of x, and that is close to x."""
    raw, packed = _matrix(kind)
    x = _inputs(5, 512)[name]
    seen = _prepared(kind, x, isa)
    if kind in QUANTISED:
        step = np.abs(x.reshape(len(x), -1, 32)).max(axis=2).repeat(32, axis=1).astype(np.float64) / 127
        assert np.all(np.abs(seen - x) <= 0.5001 * step + 127 * 1.5e-45)
    got = product(kind, packed, x, isa).astype(np.float64)
    lost = 512 * 1.2e-38 if kind == "BF16" and isa in PAIRS else 1e-43  # the former count subnormal numbers as zero
    room = 2e-6 * np.abs(seen) @ _magnitudes(kind, raw).T + lost
    np.testing.assert_array_less(np.abs(got - seen @ real(kind, raw).T), room)


@each_type
@pytest.mark.parametrize("name", ["normal", "one outlier in a block", "scales from 1e-3 to 1e3", "all equal"])
def test_error_no_worse_than_llama_cpp(kind: str, name: str) -> None:
    """Root mean square over several matrices; beside errors there are roundings in float32, of which both have some."""
    ours, theirs, right = [], [], []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        raw = weights(kind, 3 * TILE, 512, rng)
        x = _inputs(24, 512)[name] * rng.choice(np.array([-1, 1], np.float32), 512)
        exact = x.astype(np.float64) @ real(kind, raw).T
        ours.append(product(kind, pack(kind, 512, raw), x) - exact)
        theirs.append(products.llama_product(kind, raw, x) - exact)
        right.append(exact)
    assert np.linalg.norm(ours) <= 1.03 * np.linalg.norm(theirs) + 2e-7 * np.linalg.norm(right)


@each_isa
@each_type
@pytest.mark.parametrize("scale", [6e-8, 3e-6, 60000.0])
def test_extreme_weights(kind: str, isa: int, scale: float) -> None:
    """Scales (F16, BF16: values) that are subnormal in half precision, or nearly its largest."""
    raw = weights(kind, TILE, 256, np.random.default_rng(4), scale if kind in QUANTISED else scale / 4)
    x = _inputs(3, 256)["normal"]
    seen = _prepared(kind, x, isa)
    got = product(kind, pack(kind, 256, raw), x, isa)
    room = 2e-6 * np.abs(seen) @ _magnitudes(kind, raw).T + 1e-43
    np.testing.assert_array_less(np.abs(got - seen @ real(kind, raw).T), room)


@each_isa
@each_type
def test_same_bits_at_every_width_place_and_number_of_threads(kind: str, isa: int) -> None:
    _, packed = _matrix(kind)
    x = _inputs(33, 512)["normal"]
    alone = np.concatenate([product(kind, packed, x[i : i + 1], isa) for i in range(33)])
    for width in range(1, 34):
        start = 33 - width
        got = product(kind, packed, x[start:], isa, threads=1 + width % 3)
        np.testing.assert_array_equal(got, alone[start:])
    for threads in (1, 2, 3, 5):
        np.testing.assert_array_equal(product(kind, packed, x[::-1].copy(), isa, threads), alone[::-1])


@each_isa
@each_type
@settings(max_examples=8, deadline=None)
@given(
    blocks=st.integers(1, 6),
    tiles=st.integers(1, 5),
    width=st.integers(1, 40),
    threads=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_gives_the_bits_of_one_row(
    kind: str, isa: int, blocks: int, tiles: int, width: int, threads: int, seed: int
) -> None:
    columns = columns_of(kind, blocks)
    rng = np.random.default_rng(seed)
    packed = pack(kind, columns, weights(kind, tiles * TILE, columns, rng))
    x = rng.standard_normal((width, columns)).astype(np.float32)
    row = int(rng.integers(width))
    got = product(kind, packed, x, isa, threads)
    np.testing.assert_array_equal(got[row], product(kind, packed, x[row : row + 1], isa)[0])
    if kind != "BF16" or isa not in PAIRS:
        np.testing.assert_array_equal(got[row], product(kind, packed, x[row : row + 1], isa=1)[0])


@each_isa
@each_type
@pytest.mark.parametrize("name", _inputs(1, 32))
def test_instruction_sets_agree(kind: str, isa: int, name: str) -> None:
    """They do the same float operations in the same order."""
    _, packed = _matrix(kind)
    x = _inputs(5, 512)[name]
    if kind == "BF16" and isa in PAIRS:  # another order; here with x that is BF16 already
        x = (x.view(np.uint32) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        size = np.abs(x).astype(np.float64) @ np.abs(real(kind, _matrix(kind)[0])).T
        apart = np.abs(product(kind, packed, x, isa).astype(np.float64) - product(kind, packed, x, isa=1))
        np.testing.assert_array_less(apart, 1e-6 * size + 512 * 1.2e-38)
        return
    np.testing.assert_array_equal(product(kind, packed, x, isa), product(kind, packed, x, isa=1))


@each_isa
@each_type
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_stays_in_its_row(kind: str, isa: int, bad: float) -> None:
    _, packed = _matrix(kind)
    x = _inputs(7, 512)["normal"]
    clean = product(kind, packed, x, isa)
    x[3, 100] = bad
    got = product(kind, packed, x, isa)
    assert not np.isfinite(got[3]).any()
    np.testing.assert_array_equal(np.delete(got, 3, axis=0), np.delete(clean, 3, axis=0))


@each_isa
@each_type
def test_addresses_need_no_alignment(kind: str, isa: int) -> None:
    _, packed = _matrix(kind)
    x = _inputs(9, 512)["normal"]
    shifted_x = np.zeros(x.size + 1, np.float32)[1:].reshape(x.shape)
    shifted_x[...] = x
    shifted = np.zeros(packed.size + 2, np.uint8)[2:].reshape(packed.shape)
    shifted[...] = packed
    np.testing.assert_array_equal(product(kind, shifted, shifted_x, isa), product(kind, packed, x, isa))


def test_what_cannot_be_done_is_refused() -> None:
    _, packed = _matrix("Q8_0")
    x, out = np.zeros((2, 512), np.float32), np.zeros((2, 48), np.float32)
    addresses = (packed.ctypes.data, x.ctypes.data, out.ctypes.data)
    run, kind = wide.library().lsw_product, number("Q8_0")
    for columns, rows, width, threads in [(512, 48, 0, 1), (500, 48, 1, 1), (512, 40, 1, 1), (512, 48, 1, 0)]:
        assert run(kind, columns, rows, width, *addresses, 0, threads) == 1
    assert run(0, 512, 48, 1, *addresses, 0, 1) == 1
    assert run(kind, 512, 48, 1, *addresses, 9, 1) == 2
