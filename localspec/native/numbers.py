"""Noise, log and exp in C, the same bits everywhere."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import numpy.typing as npt

from localspec.native.library import ISAS, noise_struct, open_library
from localspec.native.scratch import Scratch
from localspec.types import Float64Array, Noise, Purpose, Tokens


class Numbers:
    """The open C library on one instruction set, and what it computes of numbers alone."""

    def __init__(self, isa: str = "best") -> None:
        """
        Args:
            isa: one of ISAS; "best" lets the CPU decide.

        Raises:
            KernelError: the library is missing, of another version or cannot be loaded, or the CPU lacks `isa`.
        """
        self.library = open_library()
        self._isa = ISAS[isa]
        self._local = threading.local()
        self.isa: str = self.library.ls_isa_name(self.library.ls_workspace_isa(self.scratch().workspace)).decode()
        """The instruction set in use."""
        self.cpu_features: str = self.library.ls_cpu_features().decode()
        """What the dispatcher saw, e.g. "x86-64 avx2 avx512"."""

    def scratch(self) -> Scratch:
        """Buffers of the thread that calls."""
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = Scratch(self.library, self._isa)
        return scratch

    def philox4x32_10(self, counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """uint32[4] random words for a uint32[4] counter and a uint32[2] key (Salmon et al. 2011)."""
        words = np.ascontiguousarray(counter, dtype=np.uint32)
        keys = np.ascontiguousarray(key, dtype=np.uint32)
        out = np.empty(4, dtype=np.uint32)
        self.library.ls_philox4x32_10(words.ctypes.data, keys.ctypes.data, out.ctypes.data)
        return out

    def uniform(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
        """float64[n] in (0, 1), one per token id: (x + 0.5) / 2^32, x the first Philox word."""
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        out = np.empty(len(tokens))
        struct = noise_struct(noise)
        self.library.ls_uniform(
            ctypes.addressof(struct), purpose, position & 0xFFFFFFFF, tokens.ctypes.data, len(tokens), out.ctypes.data
        )
        return out

    def gumbel(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
        """float64[n] = -log(-log(uniform)), with our own log."""
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        out = np.empty(len(tokens))
        struct = noise_struct(noise)
        self.library.suited(len(tokens)).ls_gumbel(
            self.scratch().workspace,
            ctypes.addressof(struct),
            purpose,
            position & 0xFFFFFFFF,
            tokens.ctypes.data,
            len(tokens),
            out.ctypes.data,
        )
        return out

    def log(self, x: Float64Array) -> Float64Array:
        """Natural logarithm of positive normal float64[n]."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = np.empty_like(x)
        self.library.ls_log(self.scratch().workspace, x.ctypes.data, x.size, out.ctypes.data)
        return out

    def exp(self, x: Float64Array) -> Float64Array:
        """e^x of float64[n] <= 700; exactly 0 below -690."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = np.empty_like(x)
        self.library.ls_exp(self.scratch().workspace, x.ctypes.data, x.size, out.ctypes.data)
        return out
