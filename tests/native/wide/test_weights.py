"""The packed layout: exact both ways, tile by tile, and refused where it does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.gguf import TENSOR_TYPES, packs
from localspec.llama.exact import wide
from tests.native.wide.products import TILE, TYPES, block, columns_of, number, pack, random_bytes

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=15, deadline=None)
@given(blocks=st.integers(1, 5), tiles=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_unpacking_restores_every_bit(kind: str, blocks: int, tiles: int, seed: int) -> None:
    columns = columns_of(kind, blocks)
    raw = random_bytes(kind, tiles * TILE, columns, np.random.default_rng(seed))
    packed = pack(kind, columns, raw)
    assert not np.array_equal(packed, raw)
    assert wide.library().lsw_unpack(number(kind), columns, len(raw), packed.ctypes.data) == 0
    np.testing.assert_array_equal(packed, raw)


@pytest.mark.parametrize("kind", TYPES)
def test_a_tile_stays_in_its_place(kind: str) -> None:
    columns = columns_of(kind, 3)
    raw = random_bytes(kind, 3 * TILE, columns, np.random.default_rng(1))
    tiles = [pack(kind, columns, raw[at : at + TILE]) for at in range(0, len(raw), TILE)]
    np.testing.assert_array_equal(pack(kind, columns, raw), np.concatenate(tiles))


def test_layout_of_q8_0() -> None:
    """As weights.c has it: the scales of all blocks, then one dword of 16 rows after the other, + 128."""
    blocks = 3
    raw = random_bytes("Q8_0", TILE, 32 * blocks, np.random.default_rng(2))
    rows = raw.reshape(TILE, blocks, 34)
    scales = rows[:, :, :2].transpose(1, 0, 2).ravel()
    dwords = (rows[:, :, 2:] ^ 0x80).reshape(TILE, blocks, 8, 4).transpose(1, 2, 0, 3).ravel()
    np.testing.assert_array_equal(pack("Q8_0", 32 * blocks, raw).ravel(), np.concatenate([scales, dwords]))


def test_layout_of_f16() -> None:
    raw = random_bytes("F16", TILE, 6, np.random.default_rng(3))
    np.testing.assert_array_equal(pack("F16", 6, raw).view(np.uint16).ravel(), raw.view(np.uint16).T.ravel())


@pytest.mark.parametrize("kind", TYPES)
def test_what_does_not_fit_is_refused(kind: str) -> None:
    values = max(block(kind)[0], 2)
    room = np.zeros(64 * 1024, np.uint8)
    for columns, rows in [
        (values - 1, 16),
        (values + 1, 16),
        (values, 15),
        (values, 17),
        (0, 16),
        (values, 0),
        (-values, 16),
    ]:
        assert wide.library().lsw_pack(number(kind), columns, rows, room.ctypes.data) == 1
        assert wide.library().lsw_unpack(number(kind), columns, rows, room.ctypes.data) == 1
    assert not room.any()


@pytest.mark.parametrize(("columns", "rows"), [(256, 16), (256, 24), (32, 16), (64, 48), (48, 16), (2, 16), (1, 16)])
def test_the_list_of_packed_types_is_the_librarys(columns: int, rows: int) -> None:
    room = np.zeros(64 * 1024, np.uint8)
    for number_, (name, _, _) in TENSOR_TYPES.items():
        taken = wide.library().lsw_pack(number_, columns, rows, room.ctypes.data) == 0
        assert taken == packs(name, columns, rows), name


@pytest.mark.parametrize("kind", [0, 9, 15, 19, 26, 29, 34, 40, -1, 99])
def test_other_types_are_refused(kind: int) -> None:
    room = np.zeros(64 * 1024, np.uint8)
    assert wide.library().lsw_pack(kind, 256, 16, room.ctypes.data) == 1
