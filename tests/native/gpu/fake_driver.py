"""NVIDIA's driver on the host's memory, compiled by the test: what native/gpu/cuda.c calls, with faults on demand."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.native.gpu import Gpu
from localspec.types import Float32Array

from .host import COMPILER, FLAGS, optimisation

FOLDER = Path(__file__).parent


def compile_driver(folder: Path, source: str = "fake_driver.cpp") -> Path:
    library = folder / "libcuda.so.1"
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, *FLAGS, *optimisation(), str(FOLDER / source), "-o", str(library)], check=True, timeout=300
    )
    return library


def load_driver(factory: pytest.TempPathFactory) -> FakeDriver:
    """The driver, compiled for a run of tests; without a compiler they are skipped."""
    if COMPILER is None or sys.platform == "win32":
        pytest.skip("needs a C++ compiler")
    return FakeDriver(compile_driver(factory.mktemp("driver")))


def as_at_its_start(library: FakeDriver) -> Iterator[FakeDriver]:
    """For a test; after it nothing is held and nothing was wrong."""
    library.reset()
    yield library
    assert library.fault() == ""
    assert library.held() == 0
    library.reset()


class FakeDriver:
    """The compiled driver. What it holds counts blocks of memory, contexts, modules and streams."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_fault.restype = ctypes.c_char_p
        self._taken: list[int] = []

    def reset(self) -> None:
        """No more faults; what tests took is given back."""
        for address in self._taken:
            self._library.fake_give(ctypes.c_uint64(address))
        self._taken.clear()
        self._library.fake_reset()

    def fail(self, function: str, calls: int = 0, error: int = 700) -> None:
        """The call of `function` after `calls` more fails, and all that follow; out of memory (2) fails once."""
        self._library.fake_fail(function.encode(), calls, error)

    def put(self, what: str, value: int) -> None:
        """A property of the device or of its driver."""
        self._library.fake_set(what.encode(), value)

    def fault(self) -> str:
        """The first thing that a real driver would not have borne."""
        return str(self._library.fake_fault().decode())

    def calls(self, function: str) -> int:
        return int(self._library.fake_calls(function.encode()))

    def held(self) -> int:
        return int(self._library.fake_held()) - len(self._taken)

    def upload(self, matrix: Float32Array) -> int:
        """Address of a copy in the device's memory, as llama.cpp would leave logits there."""
        take = self._library.fake_take
        take.restype = ctypes.c_uint64
        self._taken.append(int(take(ctypes.c_void_p(matrix.ctypes.data), ctypes.c_size_t(matrix.nbytes))))
        return self._taken[-1]

    @contextlib.contextmanager
    def lent(self, address: int, size: int) -> Iterator[None]:
        """Memory of the host, in bytes, is the device's for a while."""
        self._library.fake_lend(ctypes.c_uint64(address), ctypes.c_size_t(size))
        yield
        self._library.fake_take_back(ctypes.c_uint64(address))

    def open(self, ordinal: int = 0) -> Gpu:
        return Gpu(ordinal, self.path)
