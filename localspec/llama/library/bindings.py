"""The package that llama.cpp and its ctypes bindings come from.

llama-cpp-python serves if it is installed in the version this package is written for; it may be compiled for a GPU. The
release wheels bring localspec-llama: the same bindings and libraries under names of its own (packaging/llama).

Structs of ggml and llama.cpp that their bindings do not declare, as the pinned release lays them out.

`packaging/port` compares them with the headers of a release; native/wide/abi.h has what C needs of ggml.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

from localspec.errors import LocalspecError

PINNED = "0.3.36"  # the version of llama-cpp-python whose struct layouts and behaviour this package is written for
_DISTRIBUTIONS = {"llama-cpp-python": "llama_cpp", "localspec-llama": "localspec_llama"}
"""What serves, best first, and the package each one installs."""


@dataclass(frozen=True, slots=True)
class Bindings:
    distribution: str  # as pip calls it
    version: str
    unused: str = ""  # a distribution of another version that was passed over, with it; "" = there is none

    @property
    def package(self) -> str:
        return _DISTRIBUTIONS[self.distribution]

    def load(self, name: str) -> Any:
        """The package's module of that name, without what else its __init__.py imports: that takes four times as long.
        Importing the package itself works before and afterwards, and shares this module.

        Raises:
            ImportError, OSError, RuntimeError: it is missing, or its library does not load.
        """
        package = self.package
        if package in sys.modules:
            return importlib.import_module(f"{package}.{name}")
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ImportError(f"there is no module {package}")
        sys.modules[package] = importlib.util.module_from_spec(spec)  # not executed
        try:
            return importlib.import_module(f"{package}.{name}")
        finally:
            del sys.modules[package]


def advice(distribution: str = "llama-cpp-python", again: bool = False) -> str:
    """What installs a distribution in the right version, or once more."""
    return f"Run: pip install {'--force-reinstall --no-deps ' if again else ''}{distribution}=={PINNED}"


@functools.cache
def installed() -> Bindings:
    """The bindings that serve. Raises LocalspecError: there are none of the right version."""
    others: list[str] = []
    for distribution in _DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version.partition(".post")[0] == PINNED:
            return Bindings(distribution, version, ", ".join(others))
        others.append(f"{distribution} {version}")
    if others:
        raise LocalspecError(f"{' and '.join(others)} is installed, but localspec needs {PINNED}.", advice())
    raise LocalspecError("llama-cpp-python is not installed.", advice())


_POINTER = ctypes.c_void_p


class Tensor(ctypes.Structure):
    """The start of a ggml_tensor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", _POINTER),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", _POINTER * 10),
        ("view_src", _POINTER),
        ("view_offs", ctypes.c_size_t),
        ("data", _POINTER),
    )


class TypeTraits(ctypes.Structure):
    """The start of a ggml_type_traits: how ggml stores a type."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, _POINTER, _POINTER, ctypes.c_int64)),
    )


class InitParams(ctypes.Structure):
    """A ggml_init_params: the memory for descriptions of tensors."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _POINTER), ("no_alloc", ctypes.c_bool))


class BufferOverride(ctypes.Structure):
    """A llama_model_tensor_buft_override: where tensors of a name go."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", _POINTER))
