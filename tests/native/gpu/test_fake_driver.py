"""The driver that the host side for CUDA is tested with: its functions are NVIDIA's, and it notices mistakes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from .fake_driver import FakeDriver
from .host import COMPILER, FLAGS, NATIVE

CC = shutil.which("cc")
MISTAKES = {
    "no wait": ('TRY("preselection", g->cuda.stream_wait(g->stream));', ""),
    "short grid": ("(stripes + LS_THREADS - 1) / LS_THREADS", "(stripes - 1) / LS_THREADS"),
    "small block": ("2 * block_words * LS_WORD", "block_words * 2"),
    "no pop": ("const int32_t error = g->cuda.context_pop(&context);", "const int32_t error = 0;\n    (void)context;"),
    "arguments": ("{&asked, &tops, &limits, &found}", "{&asked, &tops, &found, &limits}"),
    "early release": ("if (status && g->stream) {", "if (!g->stream) {"),
    "stream kept": ("g->cuda.stream_destroy(g->stream);", ""),
}


def compile_host_side(folder: Path, right: str = "", wrong: str = "") -> ctypes.CDLL:
    """native/gpu/cuda.c alone, with a text in place of another."""
    shutil.copytree(NATIVE / "gpu", folder / "gpu")
    for name in ("localspec.h", "real.h"):
        shutil.copy(NATIVE / name, folder)
    source = (NATIVE / "gpu" / "cuda.c").read_text(encoding="utf-8")
    assert right == "" or source.count(right) == 1
    (folder / "gpu" / "cuda.c").write_text(source.replace(right, wrong) if right else source, encoding="utf-8")
    command = [
        "cc",
        "-std=c17",
        "-O1",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        "gpu/cuda.c",
        "gpu/device.c",
        "-o",
        "cuda.so",
    ]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "cuda.so"))


@pytest.fixture
def own_driver(driver_library: FakeDriver, tmp_path: Path) -> FakeDriver:
    """One that no other test uses."""
    (tmp_path / "driver").mkdir()
    return FakeDriver(Path(shutil.copy(driver_library.path, tmp_path / "driver")))


def said(host_side: ctypes.CDLL, driver: FakeDriver) -> list[str]:
    """What the self-test or the driver finds wrong: with a device that serves, and with one lost in the self-test."""
    found = []
    for lost in (False, True):
        driver.reset()
        if lost:
            driver.fail("cuLaunchKernel", 1)
        handle, reason = ctypes.c_void_p(), ctypes.create_string_buffer(256)
        status = host_side.ls_gpu_open(str(driver.path).encode(), 0, ctypes.byref(handle), reason)
        host_side.ls_gpu_close(handle)
        if (status != 0) != lost:
            found.append(reason.value.decode())
        found += [driver.fault()] if driver.fault() else []
        found += [f"{driver.held()} things are held"] if driver.held() else []
    return found


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
def test_what_is_right_passes(own_driver: FakeDriver, tmp_path: Path) -> None:
    assert said(compile_host_side(tmp_path), own_driver) == []


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
@pytest.mark.parametrize(("right", "wrong"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_noticed(own_driver: FakeDriver, tmp_path: Path, right: str, wrong: str) -> None:
    assert said(compile_host_side(tmp_path, right, wrong), own_driver)


def cuda_headers() -> Path | None:
    """The folder of cuda.h, beside nvcc."""
    nvcc = shutil.which("nvcc")
    for root in ([Path(nvcc).resolve().parents[1]] if nvcc else []) + [Path("/usr/local/cuda")]:
        if (root / "include" / "cuda.h").is_file():
            return root / "include"
    return None


CHECK = """
#include <cuda.h>
#include "driver.h"
template <typename A, typename B, typename... Cs, typename... Ds>
constexpr bool alike(A (*)(Cs...), B (*)(Ds...)) {
    if constexpr (sizeof...(Cs) == sizeof...(Ds)) {
        return sizeof(A) == sizeof(B) && ((sizeof(Cs) == sizeof(Ds)) && ...);
    }
    return false;
}
#define CHECK_ONE(field, name, arguments) static_assert(alike((int32_t(*) arguments)0, decltype(&name)(0)), #name);
CUDA_FUNCTIONS(CHECK_ONE)
static_assert(CUDA_OUT_OF_MEMORY == CUDA_ERROR_OUT_OF_MEMORY && CUDA_INVALID_VALUE == CUDA_ERROR_INVALID_VALUE);
static_assert(CUDA_CAPABILITY_MAJOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(CUDA_CAPABILITY_MINOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(CUDA_MEMORY_TYPE == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(CUDA_DEVICE_ORDINAL == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(CUDA_DEVICE_MEMORY == CU_MEMORYTYPE_DEVICE && CUDA_STREAM_NON_BLOCKING == CU_STREAM_NON_BLOCKING);
"""
"""Every function of driver.h is one of cuda.h, with as many arguments of the same sizes; the numbers are the same."""


@pytest.mark.skipif(COMPILER is None or cuda_headers() is None, reason="needs a C++ compiler and cuda.h")
@pytest.mark.parametrize("wrong", [False, True])
def test_the_declarations_are_those_of_cuda_h(tmp_path: Path, wrong: bool) -> None:
    header = (NATIVE / "gpu" / "driver.h").read_text(encoding="utf-8")
    if wrong:
        header = header.replace("(cuda_address to, const void *from, size_t bytes", "(cuda_address to, size_t bytes")
    (tmp_path / "driver.h").write_text(header, encoding="utf-8")
    (tmp_path / "check.cpp").write_text(CHECK, encoding="utf-8")
    command = [str(COMPILER), *FLAGS[:1], "-fsyntax-only", f"-I{cuda_headers()}", "check.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode != 0) == wrong, done.stderr
