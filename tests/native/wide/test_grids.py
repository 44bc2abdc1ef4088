"""Grids of the formats IQ2 and IQ3: found through a function like ggml's, but not if a value is not the format's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType

from tests.native.wide.products import Doubles, Floats, block, number

SOURCE = Path(__file__).parents[3] / "native/wide/grids.c"
COMPILER = shutil.which("cc")
ENTRIES = {"IQ2_XXS": 256, "IQ2_XS": 512, "IQ2_S": 1024, "IQ3_XXS": 256, "IQ3_S": 512}
_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


@pytest.fixture
def library(tmp_path: Path) -> ctypes.CDLL:
    """grids.c alone, with no grid found yet."""
    built = tmp_path / "grids.so"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-std=c17", "-shared", "-fPIC", str(SOURCE), "-o", str(built)], check=True, timeout=60)
    loaded = ctypes.CDLL(str(built))
    loaded.wide_grid.restype = ctypes.c_void_p
    return loaded


def _find(library: ctypes.CDLL, kind: str, change: Callable[[Floats], None]) -> Doubles | None:
    """float64[entries, values of one] as the library takes them from the values of blocks, after a change."""
    _, size = block(kind)

    def to_float(blocks: int, values: ctypes._Pointer[ctypes.c_float], count: int) -> None:
        assert count == 256
        raw = np.frombuffer(ctypes.string_at(blocks, size), np.uint8)
        out = quants.dequantize(raw, GGMLQuantizationType[kind])
        change(out)
        ctypes.memmove(values, out.ctypes.data, out.nbytes)

    library.lsw_find_grid(number(kind), _TO_FLOAT(to_float))
    address = library.wide_grid(number(kind))
    if address is None:
        return None
    values, lifted = (4 if kind.startswith("IQ3") else 8), 16 if kind == "IQ3_S" else 64
    entries = np.frombuffer(ctypes.string_at(address, ENTRIES[kind] * values), np.uint8)
    return entries.reshape(-1, values).astype(np.float64) - lifted


@pytest.mark.parametrize("kind", ENTRIES)
def test_every_entry_is_found(library: ctypes.CDLL, kind: str) -> None:
    found = _find(library, kind, lambda values: None)
    assert found is not None
    form = getattr(quants, kind)
    form.init_grid()
    np.testing.assert_array_equal(found, form.grid.reshape(found.shape))


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("bad", [0.0, -1.0, 3.3, 1e30, np.nan])
def test_a_value_that_the_format_does_not_have(library: ctypes.CDLL, kind: str, bad: float) -> None:
    def spoil(values: Floats) -> None:
        values[-1] = bad

    assert _find(library, kind, spoil) is None


def test_other_types_have_none(library: ctypes.CDLL) -> None:
    library.lsw_find_grid(number("Q4_K"), _TO_FLOAT(lambda *_: None))
    assert library.wide_grid(number("Q4_K")) is None
