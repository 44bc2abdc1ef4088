"""Files of weights by llama.cpp's quantiser and ggml: written in another format, or unpacked row by row."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, ModelFileError, UsageError
from localspec.gguf import Header, Tensor
from localspec.gguf.formats import FILE_TYPES, TYPE_NUMBERS
from localspec.llama.library import lib
from localspec.llama.model import check_text_model
from localspec.machine import default_threads
from localspec.paths import new_mode
from localspec.types import Float32Array


def quantize(source: str | Path, destination: str | Path, type_name: str, threads: int = 0) -> Path:
    """Writes `source` (best F32, F16 or BF16: quantised ones lose quality twice) with its weights in another format of
    `FILE_TYPES` (any case), whole or not at all; returns `destination`. `threads` 0 = one per physical core. Raises
    UsageError, ModelFileError, LocalspecError: an unknown type; a bad source, or llama.cpp cannot quantise it; the
    destination cannot be written."""
    numbers = {name: number for number, name in FILE_TYPES.items()}
    if type_name.upper() not in numbers:
        raise UsageError(f"there is no quantisation {type_name!r}; known are {', '.join(numbers)}.")
    source, destination = check_text_model(source).path, Path(destination)
    api = lib.api()
    params = api.llama_model_quantize_default_params()
    params.ftype = numbers[type_name.upper()]
    params.nthread = threads or default_threads()
    params.allow_requantize = True
    try:
        handle, name = tempfile.mkstemp(dir=destination.parent, prefix=destination.name, suffix=".tmp")
        os.close(handle)
    except OSError as error:
        raise LocalspecError(f"{destination} cannot be written: {error.strerror}.") from error
    try:
        mark = lib.log.mark()
        if api.llama_model_quantize(os.fsencode(source), os.fsencode(name), params):
            reason = lib.log.reason(mark) or "it gave no reason"
            raise ModelFileError(f"llama.cpp cannot quantise {source} to {type_name}: {reason}.")
        os.chmod(name, new_mode())
        os.replace(name, destination)
    finally:
        if os.path.exists(name):
            os.unlink(name)
    return destination


class TensorRows:
    """A matrix in a file, mapped and not read; rows are unpacked when they are asked for."""

    def __init__(self, header: Header, tensor: Tensor) -> None:
        """Raises ModelFileError: it is no matrix, or in a number format that ggml does not unpack."""
        if len(tensor.shape) != 2:
            raise ModelFileError(f"{header.path} is corrupt: {tensor.name} has {len(tensor.shape)} dimensions, not 2.")
        self.columns, self.rows = tensor.shape
        self._unpack: Any = None
        if tensor.type != "F32":
            traits = lib.c_function("ggml_get_type_traits")(TYPE_NUMBERS[tensor.type]).contents
            self._unpack = traits.to_float
            if not self._unpack:
                raise ModelFileError(f"{tensor.name} is in {tensor.type}, which ggml does not unpack.")
        shape = (self.rows, tensor.size // self.rows)
        self._data = np.memmap(header.path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=shape)

    def read(self, rows: slice | npt.NDArray[np.integer]) -> Float32Array:
        packed = np.ascontiguousarray(self._data[rows])
        if self._unpack is None:
            return packed.view(np.float32)
        found = np.empty((len(packed), self.columns), dtype=np.float32)
        self._unpack(packed.ctypes.data, found.ctypes.data, found.size)
        return found
