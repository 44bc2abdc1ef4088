"""Memory that a context of llama.cpp begins with: pages that nothing was written to are not there and read as zeros."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localspec.llama.exact import wide
from tests.native.wide import ggml
from tests.native.wide.ggml import F32, call, get_bytes, set_bytes

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")

BYTES = 8 << 20


@contextmanager
def allocated(size: int = BYTES, name: str = "") -> Iterator[tuple[int, int]]:
    """(buffer, tensor) as a context that is being made gets them: two streams of numbers, 1,024 to a cell."""
    device = call("backend_dev_by_name", wide.DEVICE_NAME.encode())
    backend = call("backend_dev_init", device, None)
    with ggml.context() as context:
        tensor = call("new_tensor_3d", context, F32, 1024, size // 8192, 2)
        call("set_name", tensor, name.encode())
        buffer = call("backend_alloc_ctx_tensors_from_buft", context, call("backend_dev_buffer_type", device))
        call("backend_free", backend)
        yield buffer, tensor
        call("backend_buffer_free", buffer)


def resident(tensor: int) -> int:
    """Number of its whole pages that are in memory."""
    first = -(-call("get_data", tensor) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = call("nbytes", tensor) // mmap.PAGESIZE - 1
    found = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE), found) == 0
    return sum(one & 1 for one in found)


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="other systems say otherwise what is in memory")
def test_a_cleared_cache_takes_no_memory_before_it_is_written() -> None:
    with allocated() as (buffer, tensor):
        call("backend_buffer_clear", buffer, 0)
        assert resident(tensor) == 0
        set_bytes(tensor, b"\x01" * mmap.PAGESIZE, BYTES // 2)
        assert 1 <= resident(tensor) <= 512  # a system that likes huge pages brings 2 MiB
        call("backend_buffer_clear", buffer, 0)
        assert resident(tensor) == 0


@pytest.mark.parametrize("size", [8192, BYTES])
def test_it_is_cleared_to_zeros_or_to_another_byte(size: int) -> None:
    with allocated(size) as (buffer, tensor):
        for value in (0, 7, 0):
            set_bytes(tensor, b"\x01" * (size - 100), 50)
            call("backend_tensor_memset", tensor, 3, 10, 20)
            assert get_bytes(tensor, 9, 22) != bytes([value]) * 22
            call("backend_buffer_clear", buffer, value)
            assert get_bytes(tensor) == bytes([value]) * size


@pytest.mark.parametrize(
    ("name", "turned", "gives"),
    [
        ("cache_k_l0", 0, True),
        ("cache_v_l7", 0, True),
        ("cache_k_l0", 1, True),
        ("cache_v_l7", 1, False),
        ("cache_s_l0", 0, False),
    ],
)
def test_cells_of_a_slot_are_given_back(name: str, turned: int, gives: bool) -> None:
    with allocated(name=name) as (_, tensor):
        set_bytes(tensor, b"\x01" * BYTES)
        cells = BYTES // 8192
        found = wide.give_back(wide.newest_context(), 1, cells - 100, turned=bool(turned))
        assert found == (100 * 4096 // mmap.PAGESIZE * mmap.PAGESIZE if gives else 0)
        assert get_bytes(tensor) == b"\x01" * (BYTES - found) + bytes(found)
        assert wide.give_back(wide.newest_context() - 1, 1, 0, turned=False) == 0, "another context's"
        assert wide.give_back(wide.newest_context(), 2, 0, turned=False) == 0, "no such slot"


def test_nothing_is_given_back_of_a_context_that_is_gone() -> None:
    with allocated(name="cache_k_l0"):
        context = wide.newest_context()
    assert wide.give_back(context, 0, 0, turned=False) == 0
