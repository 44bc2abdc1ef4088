"""The kernel of native/gpu compiled for the host by the test itself: no CUDA, no Metal, a C++ compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.types import Float32Array, Tokens

NATIVE = Path(__file__).parents[3] / "native"
COMPILER = shutil.which("c++")
FLAGS = ["-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
LIST_ROOM = 512
"""LS_LIST_ROOM."""

Uint32Array = NDArray[np.uint32]


def optimisation() -> list[str]:
    """Under packaging/sanitize the sanitizers, as for the other libraries."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    return ["-O2"]


def compile_host(folder: Path, kernel: str | None = None) -> Path:
    """Builds native/gpu/host.cpp into `folder`; with another text in place of kernel.h, plainly, if one is given."""
    source, how = NATIVE, optimisation()
    if kernel is not None:
        source, how = folder / "native", ["-O0"]
        shutil.copytree(NATIVE / "gpu", source / "gpu")
        for name in ("localspec.h", "real.h"):
            shutil.copy(NATIVE / name, source)
        (source / "gpu" / "kernel.h").write_text(kernel, encoding="utf-8")
    library = folder / "host.so"
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, *FLAGS, *how, str(source / "gpu" / "host.cpp"), "-o", str(library)], check=True, timeout=300
    )
    return library


class Host:
    """The functions of native/gpu/host.cpp."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.ls_host_gumbel_error.restype = ctypes.c_double
        self._library.ls_host_gumbel_error.argtypes = [ctypes.c_uint32]

    def self_test(self) -> int:
        """0, or the first case that is wrong."""
        return int(self._library.ls_host_self_test())

    def gumbel_error(self, first: int) -> float:
        """The largest error of float32 noise over the 2^20 words from `first` on."""
        return float(self._library.ls_host_gumbel_error(first))

    def lists(
        self, matrix: Float32Array, request: Uint32Array, patched: Tokens, positions: Uint32Array
    ) -> tuple[list[int], NDArray[np.int32], Float32Array]:
        """Of each row: entries found, their tokens and their logits, [rows, LIST_ROOM]."""
        found = np.zeros(len(matrix), dtype=np.uint32)
        tokens = np.full((len(matrix), LIST_ROOM), -1, dtype=np.int32)
        values = np.zeros((len(matrix), LIST_ROOM), dtype=np.float32)
        self._call("ls_host_lists", matrix, len(matrix), request, patched, positions, found, tokens, values)
        return found.tolist(), tokens, values

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name)
        function(
            *(ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_uint32(a) for a in arguments)
        )
