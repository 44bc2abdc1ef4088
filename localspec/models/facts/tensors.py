"""Reads the weights of published heads: safetensors files, and torch's pickles by torch alone.

The package of that name checks a safetensors file and says where its tensors lie. numpy reads them there: the package
gives it no BF16 and no F8, which most heads are published in. Numbers may be in F32, F16, BF16, F8_E4M3 or, with the
scale of a row beside them as compressed-tensors writes it (`<name>_scale`), I8. Nothing is read before it is asked for,
and of large matrices a part at a time.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelFileError
from localspec.gguf.reader import DOWNLOAD_AGAIN
from localspec.models.facts.checkpoint import weights_of
from localspec.models.facts.safetensors import opened
from localspec.native.matrix import Int8Matrix
from localspec.types import Float32Array

_SAFE_TORCH = (2, 10)
"""Older ones run what a pickle holds, whatever `weights_only` says (CVE-2025-32434, CVE-2026-24747)."""


def _f8_values() -> Float32Array:
    """What the 256 codes of F8_E4M3 (finite, one NaN a sign) mean."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[code & 127 == 127] = np.nan
    return np.where(code & 128, -size, size).astype(np.float32)


_F8 = _f8_values()
_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "F8_E4M3": np.dtype("u1"),
    "I8": np.dtype("i1"), "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "BOOL": np.dtype("?"),
}  # fmt: skip
"""How each of the format's number formats lies in the file."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where one lies in a safetensors file."""

    name: str
    path: Path
    kind: str
    shape: tuple[int, ...]
    offset: int

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """As they are stored.

        Raises:
            ModelFileError: the file has changed.
        """
        width, stored = math.prod(self.shape[1:]), _STORED[self.kind]
        try:
            place = self.offset + start * width * stored.itemsize
            flat = np.fromfile(self.path, stored, (stop - start) * width, offset=place)
        except OSError as error:
            raise ModelFileError(f"{self.path} cannot be read: {error.strerror or error}.") from None
        if len(flat) != (stop - start) * width:
            raise ModelFileError(f"{self.path.name} is truncated at the tensor {self.name}.", DOWNLOAD_AGAIN)
        return flat.reshape(stop - start, *self.shape[1:])


@dataclass(frozen=True, slots=True)
class _Pickled:
    """One of torch's, whose file is mapped."""

    tensor: Any
    kind: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Floats in F32, others as they are stored."""
        part = self.tensor.reshape(self.shape or 1)[start:stop]
        found: npt.NDArray[Any] = (part.float() if part.is_floating_point() else part).numpy()
        return found


class Tensors:
    """The tensors of one head, by name."""

    def __init__(self, path: Path) -> None:
        """Reads headers.

        Args:
            path: a weights file, or a folder of them.

        Raises:
            ModelFileError: missing, truncated or damaged, or a pickle without torch to read it.
        """
        self.path = path
        self._found: dict[str, _Tensor | _Pickled] = {}
        for file in weights_of(path):
            self._found |= _safetensors(file) if file.suffix.lower() == ".safetensors" else _pickled(file)
        for name in self._found:
            self._check_scales(name)

    def _check_scales(self, name: str) -> None:
        """Whether scales are one for each row of their tensor, or one in all."""
        if name.endswith("_scale_inv"):
            raise ModelFileError(f"{self.path.name}: {name} scales a tensor in blocks, which localspec does not read.")
        scaled = self._found.get(name.removesuffix("_scale"))
        if not name.endswith("_scale") or scaled is None:
            return
        count, rows = math.prod(self._found[name].shape), (*scaled.shape, 1)[0]
        if count not in (1, rows):
            raise ModelFileError(
                f"{self.path.name}: {name} has {count} numbers for a tensor of {rows} rows.", DOWNLOAD_AGAIN
            )

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every tensor; those of scales included."""
        return {name: found.shape for name, found in self._found.items()}

    def need(self, name: str, *shape: int) -> None:
        """
        Raises:
            ModelFileError: there is no such tensor, or not of this shape.
        """
        found = self._found.get(name)
        if found is None:
            raise ModelFileError(f"{self.path.name} lacks the tensor {name}.")
        if found.shape != shape:
            raise ModelFileError(f"{self.path.name}: tensor {name} is {list(found.shape)}; {list(shape)} is needed.")

    def stored(self, name: str) -> npt.NDArray[Any]:
        """A tensor of integers as it is.

        Raises:
            ModelFileError: there is none, or the file has changed.
        """
        found = self._held(name)
        return found.rows(0, (*found.shape, 1)[0]).reshape(found.shape)

    def array(self, name: str) -> Float32Array:
        """A tensor as float32.

        Raises:
            ModelFileError: there is none, or the file has changed.
        """
        shape = self._held(name).shape
        return self._floats(name, 0, (*shape, 1)[0]).reshape(shape)

    def matrix(self, name: str) -> Int8Matrix:
        """A matrix in 8 bits: as it is stored, or rounded.

        Raises:
            ModelFileError: there is none, or the file has changed.
        """
        held, scale = self._held(name), f"{name}_scale"
        if held.kind == "I8" and scale in self._found:
            values = self.stored(name)
            scales = np.broadcast_to(self.array(scale).reshape(-1), (len(values),))
            return Int8Matrix(np.ascontiguousarray(values), np.ascontiguousarray(scales))
        return Int8Matrix.in_parts(held.shape, lambda start, stop: self._floats(name, start, stop))

    def _held(self, name: str) -> _Tensor | _Pickled:
        found = self._found.get(name)
        if found is None:
            raise ModelFileError(f"{self.path.name} lacks the tensor {name}.")
        return found

    def _floats(self, name: str, start: int, stop: int) -> Float32Array:
        """Rows of a tensor as they are meant."""
        held, scale = self._held(name), f"{name}_scale"
        found = held.rows(start, stop)
        if held.kind == "BF16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        floats: Float32Array = (_F8[found] if held.kind == "F8_E4M3" else found).astype(np.float32)
        if scale in self._found:
            scales = self.array(scale).reshape(-1)
            floats *= (scales if len(scales) == 1 else scales[start:stop]).reshape(-1, *[1] * (floats.ndim - 1))
        return floats


def _safetensors(path: Path) -> dict[str, _Tensor]:
    """The package has checked that its tensors fill a file to the end, without holes."""
    file, found = opened(path), dict[str, _Tensor]()
    end = path.stat().st_size
    for name in reversed(file.offset_keys()):
        lies = file.get_slice(name)
        kind, shape = lies.get_dtype(), tuple(lies.get_shape())
        if kind not in _STORED:
            raise ModelFileError(f"{path.name}: tensor {name} is in {kind}, which localspec does not read.")
        end -= math.prod(shape) * _STORED[kind].itemsize
        found[name] = _Tensor(name, path, kind, shape, end)
    return found


def _pickled(path: Path) -> dict[str, _Pickled]:
    """The state dictionary in a pickle, opened by torch without running anything in it."""
    try:
        torch = import_module("torch")
    except ImportError:
        raise ModelFileError(
            f"{path.name} is a pickle, which only torch reads, and torch is not installed.",
            "Install torch, or convert the file to safetensors.",
        ) from None
    version = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if version is None or tuple(map(int, version.groups())) < _SAFE_TORCH:
        raise ModelFileError(
            f"{path.name} is a pickle, and torch {torch.__version__} can be made to run what is in one.",
            f"Install torch {'.'.join(map(str, _SAFE_TORCH))} or newer, or convert the file to safetensors.",
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        tensors = {str(name): _Pickled(tensor.detach()) for name, tensor in found.items()}
        for tensor in tensors.values():
            tensor.rows(0, 0)  # what is no array of numbers says so here
        return tensors
    except Exception as error:  # noqa: BLE001 (torch raises whatever its parts do)
        reason = str(error).strip().split("\n")[0][:200]
        raise ModelFileError(f"{path.name} cannot be read as weights of torch's: {reason}.", DOWNLOAD_AGAIN) from None
