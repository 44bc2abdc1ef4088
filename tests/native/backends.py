"""Every implementation of the kernels that this machine can run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.native.indexes import NgramIndex
from localspec.native.kernels import NativeKernels
from localspec.native.library import ISAS, NoiseStruct
from localspec.types import Float64Array, Noise, Purpose, Tokens
from tests import reference
from tests.native.guesses import GuessingIndex


def noise_struct(noise: Noise) -> NoiseStruct:
    return NoiseStruct(noise.seed, noise.stream & 0xFFFFFFFF, noise.round & 0x3FFFFFFF)


class NumberKernels(NativeKernels):
    """The kernels, and what they are made of: numbers of the C library that only C asks for."""

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
        out, struct = np.empty(len(tokens)), noise_struct(noise)
        self.library.ls_uniform(
            ctypes.addressof(struct), purpose, position & 0xFFFFFFFF, tokens.ctypes.data, len(tokens), out.ctypes.data
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


@dataclass(frozen=True)
class Backend:
    """An implementation and its name in test ids."""

    name: str
    kernels: Any
    ngrams: Callable[[int, int], Any]
    suffixes: Callable[[int], Any]

    def __str__(self) -> str:
        return self.name


def _natives() -> list[Backend]:
    found = []
    for isa in ISAS:
        try:
            kernels = NumberKernels(isa)
        except KernelError:  # not this machine's
            continue
        found.append(Backend(f"native-{isa}", kernels, NgramIndex, GuessingIndex))
    return found


REFERENCE = Backend("reference", reference, reference.NgramIndex, reference.SuffixIndex)
NATIVE = _natives()
BACKENDS = [REFERENCE, *NATIVE]
