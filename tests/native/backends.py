"""Every implementation of the kernels that this machine can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localspec import kernels, native, reference
from localspec.errors import KernelError


@dataclass(frozen=True)
class Backend:
    """An implementation and its name in test ids."""

    name: str
    kernels: Any

    def __str__(self) -> str:
        return self.name


def _natives() -> list[Backend]:
    found = []
    for isa in native.ISAS:
        try:
            found.append(Backend(f"native-{isa}", native.load(isa)))
        except KernelError:  # not this machine's, or no library
            continue
    return found


REFERENCE = Backend("reference", reference)
NATIVE = _natives()
BACKENDS = [REFERENCE, *NATIVE]
_TYPED: kernels.Backend = reference  # mypy: the reference is a backend
