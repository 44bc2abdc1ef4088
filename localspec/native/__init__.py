"""The kernels in C: finds the library built from native/, declares its functions, and calls them.

The functions are described in kernels.py, the C side in native/localspec.h.
"""

from __future__ import annotations

from localspec.errors import KernelError
from localspec.native.binding import NativeKernels
from localspec.native.library import FILE_NAME, ISAS, PackedSampling, find_library

__all__ = ["ISAS", "NativeKernels", "PackedSampling", "find_library", "load"]


def load(isa: str = "best") -> NativeKernels:
    """The native kernels; KernelError with the reason if there are none."""
    path = find_library()
    if path is None:
        raise KernelError(f"no {FILE_NAME} was built.", "Install a C compiler and reinstall localspec.")
    return NativeKernels(path, isa)
