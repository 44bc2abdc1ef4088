"""Trained heads as their authors publish them: a folder with config.json and weights, or a weights file of such.

The package safetensors checks such a file and says where its tensors lie; torch alone reads its pickles. numpy reads
the tensors there: the package gives it no BF16 and no F8, which most heads are published in. Numbers may be in F32,
F16, BF16, F8_E4M3 or, with the scale of a row beside them as compressed-tensors writes it (`<name>_scale`), I8. Nothing
is read before it is asked for, and of large matrices a part at a time.
"""

from __future__ import annotations

import json
import math
import pickletools
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.errors import LocalspecError, ModelFileError, reason
from localspec.gguf import DOWNLOAD_AGAIN
from localspec.methods import TABLE
from localspec.models.facts.heads import DraftKind
from localspec.native.library import Int8Matrix
from localspec.types import Float32Array


def opened(path: Path) -> Any:
    """The package's `safe_open`: the file is mapped, and its header checked.

    Raises:
        ModelFileError: missing, truncated or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        text = f"{path.name} is truncated, or no safetensors file: {reason(error)}."
        raise ModelFileError(text, DOWNLOAD_AGAIN) from None


def save(path: Path, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, str] | None = None) -> None:
    """Writes a file, whole or not at all; what is there is replaced. The package writes it beside, for its owner alone,
    and renames it.

    Args:
        arrays: mapped ones are never in memory as a whole.
        facts: for the header's `__metadata__`.

    Raises:
        LocalspecError: the disk is full or read-only.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # it takes others as they lie
    try:
        save_file(dense, path, dict(facts or {}))
        path.chmod(paths.new_mode())
    except (OSError, SafetensorError) as error:
        raise LocalspecError(f"{path} cannot be written: {reason(error)}.") from None


_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
_KNOWN = ("model", "pytorch_model")
"""How names of weights files begin."""
_BESIDE_MODEL = "medusa_lm_head"
"""How those of heads begin that are published in one folder with the whole model they were trained for."""
_OF_TRAINING = ("training_args", "optimizer", "scheduler", "rng_state")
"""How those begin that trainers leave beside them."""


def is_checkpoint(path: Path) -> bool:
    """Whether it is in the form in which models are published for Python, as against a GGUF file."""
    return path.is_dir() or path.suffix.lower() in _WEIGHTS


def checkpoint_kind(path: Path) -> DraftKind:
    """What a folder or weights file is as a drafter: by its config.json, else by the names of its tensors."""
    config = config_of(path)
    words = f"{config.get('model_type')} {config.get('architectures')}".lower()
    forms = [(row, row.published) for row in TABLE if row.published]
    stated = (row for row, form in forms if form.key in config or any(word in words for word in form.words))
    found = next(stated, None)
    if found is None:
        names = {name for file in weights_of(path) for name in _names(file)}
        held = (row for row, form in forms if any(re.match(form.tensors, name) for name in names))
        found = next(held, None)
    if found is None:
        return DraftKind("unknown", "no head of a kind localspec knows", drafts=False)
    return DraftKind(found.name, found.sentence, is_head=True)


def config_of(path: Path) -> dict[str, Any]:
    """The config.json in the folder, or beside the weights file; empty without one.

    Raises:
        ModelFileError: it is no JSON object.
    """
    place = (path if path.is_dir() else path.parent) / "config.json"
    try:
        found = json.loads(place.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{place} cannot be read: {reason(error)}.") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{place} is no JSON object.")
    return found


def weights_of(path: Path) -> list[Path]:
    """The weights files of a folder, safetensors before others, and those of known names before others; of a file
    itself. The model that Medusa heads lie beside is none of them.

    Raises:
        ModelFileError: there is none.
    """
    found = [path] if path.is_file() else []
    for name in (_BESIDE_MODEL, "") if path.is_dir() else ():
        for suffix in _WEIGHTS:
            files = sorted(path.glob(f"{name}*{suffix}"))
            found = found or [file for file in files if not file.name.startswith(_OF_TRAINING)]
    if not found:
        raise ModelFileError(f"{path} is missing, or holds no weights ({', '.join(_WEIGHTS)}).")
    return [file for file in found if file.name.startswith(_KNOWN)] or found


def trained_for(path: Path) -> str:
    """sha256 of the target's file, where the head says it; "" where not."""
    found = config_of(path).get("target_sha256")
    for file in weights_of(path) if found is None else ():
        if file.suffix.lower() == ".safetensors":
            found = found or (opened(file).metadata() or {}).get("target_sha256")
    return found if isinstance(found, str) else ""


def _names(path: Path) -> set[str]:
    """Names of the tensors in a weights file; of a pickled one every string it holds, none of which is run."""
    if path.suffix.lower() == ".safetensors":
        return set(opened(path).keys())
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return {found for _, found, _ in pickletools.genops(archive.read(pickled)) if isinstance(found, str)}
    except (OSError, EOFError, ValueError, RuntimeError, StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise ModelFileError(f"{path} cannot be read as a file of torch's: {error or 'no data.pkl in it'}.") from None


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
        """Reads the headers of a weights file, or of a folder of them."""
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
        found = self._held(name).shape
        if found != shape:
            raise ModelFileError(f"{self.path.name}: tensor {name} is {list(found)}; {list(shape)} is needed.")

    def stored(self, name: str) -> npt.NDArray[Any]:
        """A tensor of integers as it is."""
        found = self._held(name)
        return found.rows(0, (*found.shape, 1)[0]).reshape(found.shape)

    def array(self, name: str) -> Float32Array:
        shape = self._held(name).shape
        return self._floats(name, 0, (*shape, 1)[0]).reshape(shape)

    def matrix(self, name: str) -> Int8Matrix:
        """A matrix in 8 bits: as it is stored, or rounded."""
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
