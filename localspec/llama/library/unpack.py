"""Rows of a tensor in a GGUF file as float32, unpacked by ggml."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelFileError
from localspec.gguf import TYPE_NUMBERS, Header, Tensor
from localspec.llama.library import lib
from localspec.llama.library.structs import TypeTraits
from localspec.types import Float32Array


class TensorRows:
    """A matrix in a file, mapped and not read; rows are unpacked when they are asked for."""

    def __init__(self, header: Header, tensor: Tensor) -> None:
        """
        Raises:
            ModelFileError: it is no matrix, or in a number format that ggml does not unpack.
        """
        if len(tensor.shape) != 2:
            raise ModelFileError(f"{header.path} is corrupt: {tensor.name} has {len(tensor.shape)} dimensions, not 2.")
        self.columns, self.rows = tensor.shape
        self._unpack: Any = None
        if tensor.type != "F32":
            find = lib.c_function("ggml_get_type_traits", ctypes.POINTER(TypeTraits), ctypes.c_int)
            self._unpack = find(TYPE_NUMBERS[tensor.type]).contents.to_float
            if not self._unpack:
                raise ModelFileError(f"{tensor.name} is in {tensor.type}, which ggml does not unpack.")
        shape = (self.rows, tensor.size // self.rows)
        self._data = np.memmap(header.path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=shape)

    def read(self, rows: slice | npt.NDArray[np.integer]) -> Float32Array:
        """float32[n, columns]: the rows of these numbers."""
        packed = np.ascontiguousarray(self._data[rows])
        if self._unpack is None:
            return packed.view(np.float32)
        found = np.empty((len(packed), self.columns), dtype=np.float32)
        self._unpack(packed.ctypes.data, found.ctypes.data, found.size)
        return found
