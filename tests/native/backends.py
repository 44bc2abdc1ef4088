"""Every implementation of the kernels that this machine can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localspec.errors import KernelError
from localspec.native.indexes import NgramIndex
from localspec.native.kernels import NativeKernels
from localspec.native.library import ISAS
from tests import reference
from tests.native.guesses import GuessingIndex


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
            kernels = NativeKernels(isa)
        except KernelError:  # not this machine's
            continue
        found.append(Backend(f"native-{isa}", kernels, NgramIndex, GuessingIndex))
    return found


REFERENCE = Backend("reference", reference, reference.NgramIndex, reference.SuffixIndex)
NATIVE = _natives()
BACKENDS = [REFERENCE, *NATIVE]
