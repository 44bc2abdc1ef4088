"""Writes the safetensors format: the length of a header in 8 bytes, the header as JSON, then all arrays in a row.

Sizes are told first and arrays come one by one, so that a file may be larger than memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, UsageError

_KINDS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I32": np.dtype("<i4"), "I8": np.dtype("i1"),
}  # fmt: skip
"""The format's names of number formats."""
Shape = tuple[str, tuple[int, ...]]
"""Number format and dimensions."""


class SafetensorsFile:
    """A file that is being written; under a name of its own until it is complete. A context manager."""

    def __init__(self, path: Path, shapes: Mapping[str, Shape], facts: Mapping[str, str] | None = None) -> None:
        """Writes the header.

        Args:
            path: where the complete file will be; what is there is replaced.
            shapes: of all arrays, by name, in the order in which they will be written.
            facts: for the header's `__metadata__`.

        Raises:
            LocalspecError: the disk is full or read-only.
        """
        self.path, self._shapes, self._left = path, dict(shapes), list(shapes)
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            self._file = self._partial.open("wb")
            self._file.write(_header(self._shapes, facts or {}))
        except OSError as error:
            self._partial.unlink(missing_ok=True)
            raise _unwritten(path, error) from None

    def write(self, name: str, array: npt.NDArray[Any]) -> None:
        """The next array.

        Raises:
            UsageError: it is not the next one, or not of the shape that was told.
            LocalspecError: the disk is full or read-only.
        """
        expected = self._left.pop(0) if self._left else None
        kind, shape = self._shapes.get(name, ("", ()))
        if name != expected or array.shape != shape or array.dtype != _KINDS[kind]:
            raise UsageError(f"{name} is {array.dtype}{list(array.shape)}; {expected} is next, {kind}{list(shape)}.")
        try:
            self._file.write(np.ascontiguousarray(array).data)
        except OSError as error:
            raise _unwritten(self.path, error) from None

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            if kind is None and not self._left:
                self._partial.replace(self.path)
        except OSError as failure:
            raise _unwritten(self.path, failure) from None
        finally:
            self._partial.unlink(missing_ok=True)
        if kind is None and self._left:
            raise UsageError(f"{self.path} lacks {self._left[0]}.")


def _header(shapes: Mapping[str, Shape], facts: Mapping[str, str]) -> bytes:
    told: dict[str, Any] = {"__metadata__": dict(facts)} if facts else {}
    end = 0
    for name, (kind, shape) in shapes.items():
        start, end = end, end + int(np.prod(shape, dtype=np.int64)) * _KINDS[kind].itemsize
        told[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(told, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    return len(text).to_bytes(8, "little") + text


def _unwritten(path: Path, error: OSError) -> LocalspecError:
    return LocalspecError(f"{path} cannot be written: {error.strerror or error}.")
