"""Reads the weights of published heads: safetensors files by our own reader, torch's pickles by torch alone.

Numbers may be in F32, F16, BF16, F8_E4M3 or, with the scale of a row beside them as compressed-tensors writes it
(`<name>_scale`), I8. Nothing is read before it is asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelFileError
from localspec.kernels import Int8Matrix
from localspec.models.checkpoint import AGAIN, safetensors_header, weights_of
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

    path: Path
    kind: str
    shape: tuple[int, ...]
    offset: int


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
        self._found: dict[str, _Tensor | npt.NDArray[Any]] = {}
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
            raise ModelFileError(f"{self.path.name}: {name} has {count} numbers for a tensor of {rows} rows.", AGAIN)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every tensor; those of scales included."""
        return {name: tuple(found.shape) for name, found in self._found.items()}

    def need(self, name: str, *shape: int) -> None:
        """
        Raises:
            ModelFileError: there is no such tensor, or not of this shape.
        """
        found = self._found.get(name)
        if found is None:
            raise ModelFileError(f"{self.path.name} lacks the tensor {name}.")
        if tuple(found.shape) != shape:
            raise ModelFileError(f"{self.path.name}: tensor {name} is {list(found.shape)}; {list(shape)} is needed.")

    def stored(self, name: str) -> npt.NDArray[Any]:
        """A tensor of integers as it is.

        Raises:
            ModelFileError: there is none, or the file has changed.
        """
        return self._read(name)[1]

    def array(self, name: str) -> Float32Array:
        """A tensor as float32.

        Raises:
            ModelFileError: there is none, or the file has changed.
        """
        kind, found = self._read(name)
        if kind == "BF16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        if kind == "F8_E4M3":
            found = _F8[found]
        floats: Float32Array = found.astype(np.float32)
        scale = f"{name}_scale"
        if scale in self._found:
            floats *= self.array(scale).reshape(-1, *[1] * (floats.ndim - 1))
        return floats

    def matrix(self, name: str) -> Int8Matrix:
        """A matrix in 8 bits: as it is stored, or rounded.

        Raises:
            ModelFileError: there is none, or the file has changed.
        """
        kind, found = self._read(name)
        scale = f"{name}_scale"
        if kind == "I8" and scale in self._found:
            scales = np.broadcast_to(self.array(scale).reshape(-1), (len(found),))
            return Int8Matrix(np.ascontiguousarray(found), np.ascontiguousarray(scales))
        return Int8Matrix.of(self.array(name))

    def _read(self, name: str) -> tuple[str, npt.NDArray[Any]]:
        found = self._found.get(name)
        if found is None:
            raise ModelFileError(f"{self.path.name} lacks the tensor {name}.")
        if not isinstance(found, _Tensor):
            return "", found
        count = math.prod(found.shape)
        try:
            flat = np.fromfile(found.path, _STORED[found.kind], count, offset=found.offset)
        except OSError as error:
            raise ModelFileError(f"{found.path} cannot be read: {error.strerror or error}.") from None
        if len(flat) != count:
            raise ModelFileError(f"{found.path.name} is truncated at the tensor {name}.", AGAIN)
        return found.kind, flat.reshape(found.shape)


def _safetensors(path: Path) -> dict[str, _Tensor]:
    header = safetensors_header(path)
    try:
        return {name: _tensor(path, facts, header.start, header.size, name) for name, facts in header.tensors.items()}
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path.name} cannot be read as a safetensors file: {error}.", AGAIN) from None


def _tensor(path: Path, facts: dict[str, Any], start: int, size: int, name: str) -> _Tensor:
    kind, shape = facts["dtype"], tuple(int(length) for length in facts["shape"])
    begin, end = (start + int(offset) for offset in facts["data_offsets"])
    if kind not in _STORED:
        raise ModelFileError(f"{path.name}: tensor {name} is in {kind}, which localspec does not read.")
    if min(shape, default=0) < 0 or begin < start or end - begin != math.prod(shape) * _STORED[kind].itemsize:
        raise ModelFileError(f"{path.name}: tensor {name} does not have the size its header says.", AGAIN)
    if end > size:
        raise ModelFileError(f"{path.name} is truncated: it ends at byte {size}, tensor {name} at {end}.", AGAIN)
    return _Tensor(path, kind, shape, begin)


def _pickled(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The state dictionary in a pickle, read by torch without running anything in it."""
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
        found = torch.load(path, map_location="cpu", weights_only=True)
        return {str(name): _numbers(torch, tensor) for name, tensor in found.items()}
    except Exception as error:  # noqa: BLE001 (torch raises whatever its parts do)
        reason = str(error).strip().split("\n")[0][:200]
        raise ModelFileError(f"{path.name} cannot be read as weights of torch's: {reason}.", AGAIN) from None


def _numbers(torch: Any, tensor: Any) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = (tensor.to(torch.float32) if tensor.is_floating_point() else tensor).numpy()
    return found
