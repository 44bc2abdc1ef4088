"""Attention of rows with holes: masked cells between cells they see change no bit, wherever blocks are cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.llama.exact import wide
from tests.native.wide.attention import BF16, F16, F32, Q8_0, Cache, Inputs, attend, encode, isas

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")


def _without(cache: Cache, seen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Cache:
    """A cache without the cells that are not seen."""
    return Cache(cache.kind, np.ascontiguousarray(cache.raw[:, seen]), np.ascontiguousarray(cache.values[:, seen]))


@pytest.mark.parametrize("kind", [F16, BF16, F32, Q8_0])
@pytest.mark.parametrize("prefix", [3, 200, 250, 255, 256, 500, 511, 700])
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_a_hole_changes_no_bit(kind: int, prefix: int, rows: int) -> None:
    rng = np.random.default_rng(prefix + rows)
    cells = prefix + 40
    k, v = (encode(kind, rng.standard_normal((1, cells, 2, 64))) for _ in range(2))
    mask = np.zeros((1, 1, rows, cells), np.float16)
    mask[..., prefix:] = np.where(rng.random((1, 1, rows, cells - prefix)) < 0.5, 0.0, -np.inf)
    mask[:, :, ::3, : prefix // 2] = -np.inf  # the lower edge of a sliding window moves nothing
    x = Inputs(rng.standard_normal((1, rows, 4, 64)).astype(np.float32), k, v, mask, 0.125)
    for isa in isas():
        for threads in (1, 2):
            found = attend(x, isa, threads)
            for row in range(rows):
                seen = mask[0, 0, row] == 0
                seen[:prefix] = True
                flat = np.ascontiguousarray(mask[:, :, row : row + 1][..., seen])
                alone = replace(x.rows(slice(row, row + 1)), k=_without(k, seen), v=_without(v, seen), mask=flat)
                assert found[0, row].tobytes() == attend(alone, isa)[0, 0].tobytes(), (isa, threads, row)
