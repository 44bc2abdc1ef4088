"""The host side for Metal, whole, against an Objective-C runtime and a Metal on the host's memory."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localspec.types import Float32Array

from .fake_driver import FakeDriver, as_at_its_start, compile_driver
from .host import COMPILER, NATIVE, Host, optimisation
from .test_cuda import greedy, places, random_rows

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None or COMPILER is None or sys.platform != "linux", reason="needs gcc and Linux")
METAL = -1
"""LS_METAL."""


@pytest.fixture(scope="module")
def metal_library(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(compile_driver(tmp_path_factory.mktemp("metal"), "fake_metal.cpp"))


@pytest.fixture
def metal(metal_library: FakeDriver) -> Iterator[FakeDriver]:
    yield from as_at_its_start(metal_library)


@pytest.fixture(scope="module")
def native_module(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """What a Mac builds of native/gpu."""
    library = tmp_path_factory.mktemp("host") / "gpu.so"
    sources = [str(NATIVE / "gpu" / name) for name in ("device.c", "metal.c", "cuda.c")]
    flags = ["-std=c17", "-D_GNU_SOURCE", "-DLS_HAVE_METAL", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, *optimisation(), *sources, "-o", str(library)], check=True, timeout=120)
    return ctypes.CDLL(str(library))


@dataclass
class Opened:
    """ls_gpu_open's answer."""

    module: ctypes.CDLL
    status: int
    handle: ctypes.c_void_p
    reason: str

    def lists(self, matrix: Float32Array) -> tuple[int, list[list[int]], str]:
        """The status, the listed tokens of each row, sorted, and what is said."""
        rows = len(matrix)
        request, positions = greedy(matrix.shape[1], 5, (3, 1)), places(rows)
        found, tokens = np.zeros(rows, np.uint32), np.zeros((rows, 512), np.int32)
        values = np.zeros((rows, 512), np.float32)
        arrays = (request.words, request.patched, positions, found, tokens, values)
        addresses = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        status = self.module.ls_gpu_lists(self.handle, ctypes.c_uint64(matrix.ctypes.data), rows, *addresses)
        self.module.ls_gpu_reason.restype = ctypes.c_char_p
        said = self.module.ls_gpu_reason(self.handle).decode()
        return status, [sorted(row[:n].tolist()) for row, n in zip(tokens, found, strict=True)], said

    def close(self) -> None:
        self.module.ls_gpu_close(self.handle)


def open_metal(module: ctypes.CDLL, metal: Path) -> Opened:
    handle, reason = ctypes.c_void_p(), ctypes.create_string_buffer(256)
    status = module.ls_gpu_open(str(metal).encode(), METAL, ctypes.byref(handle), reason)
    return Opened(module, status, handle, reason.value.decode())


def whole_pages(matrix: Float32Array) -> Float32Array:
    """A copy that is not at the beginning of its pages, as logits are not in llama.cpp's buffers."""
    room = np.zeros(matrix.nbytes + 3 * 16384, dtype=np.uint8)
    start = -room.ctypes.data % 16384 + 256
    inside = room[start : start + matrix.nbytes].view(np.float32).reshape(matrix.shape)
    inside[:] = matrix
    return inside


@pytest.mark.parametrize(("rows", "n_vocab"), [(1, 5), (3, 1000), (8, 9000)])
def test_its_lists_are_those_of_the_host(
    metal: FakeDriver, native_module: ctypes.CDLL, host: Host, rows: int, n_vocab: int
) -> None:
    opened = open_metal(native_module, metal.path)
    assert (opened.status, opened.reason) == (0, "")
    matrix = whole_pages(random_rows(rows, n_vocab))
    status, listed, _ = opened.lists(matrix)
    opened.close()
    request = greedy(n_vocab, 5, (3, 1))
    found, tokens, _ = host.lists(matrix, request.words, request.patched, places(rows))
    assert status == 0
    assert listed == [sorted(row[:n].tolist()) for row, n in zip(tokens, found, strict=True)]


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("device", "Metal finds no GPU."),
        ("unified", "Metal: this GPU has a memory of its own; localspec's kernel needs the CPU's."),
        ("library", "Metal: compiling the kernel failed (program_source:7: an error made by the test)."),
        ("function", "Metal: finding the kernel failed (unknown)."),
        ("pipeline", "Metal: preparing the kernel failed (a pipeline that is too large)."),
        ("threads", "Metal: this GPU runs fewer than 256 threads together."),
        ("queue", "Metal: making a queue failed (unknown)."),
        ("buffer", "Metal: there is no memory for 6190 numbers."),
        ("lent buffer", "Metal: the logits are in no memory that it can read."),
        ("command", "Metal: making a command failed (unknown)."),
        ("run", "Metal: preselection failed (the GPU was taken away by the test)."),
    ],
)
def test_a_gpu_that_cannot_serve_is_said_in_a_sentence(
    metal: FakeDriver, native_module: ctypes.CDLL, failing: str, said: str
) -> None:
    metal.fail(failing)
    opened = open_metal(native_module, metal.path)
    assert opened.status != 0
    assert opened.reason == said


def test_a_wrong_kernel_does_not_serve(metal: FakeDriver, native_module: ctypes.CDLL) -> None:
    metal.put("wrong_kernel", 1)
    assert "the kernel's self-test found case 1 wrong" in open_metal(native_module, metal.path).reason


def test_a_gpu_that_is_lost_says_so_in_every_call(metal: FakeDriver, native_module: ctypes.CDLL) -> None:
    opened, matrix = open_metal(native_module, metal.path), whole_pages(random_rows(2, 900))
    metal.fail("run")
    first, second = opened.lists(matrix), opened.lists(matrix)
    opened.close()
    assert first[0] == second[0] == 10  # LS_DEVICE_FAILED
    assert first[2] == second[2] == "Metal: preselection failed (the GPU was taken away by the test)."


def test_a_system_without_metal_says_nothing(native_module: ctypes.CDLL, tmp_path: Path) -> None:
    opened = open_metal(native_module, tmp_path / "Metal")
    assert (opened.status, opened.reason) == (9, "")  # LS_NO_DEVICE


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metal", NATIVE.parent / "packaging" / "metal.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_source_that_a_mac_compiles_is_up_to_date() -> None:
    made = script().make_header()
    assert (NATIVE / "gpu" / "metal_source.h").read_text(encoding="utf-8") == made, "python packaging/metal.py"
    assert "Copyright (C) 1993 by Sun" in made
