"""The matrix that turns a model's final states into logits, for heads that guess through it."""

from __future__ import annotations

import ctypes

import numpy as np

from localspec.errors import ModelFileError
from localspec.gguf import TYPE_NUMBERS, Header, Tensor
from localspec.gguf.split import read_parts
from localspec.kernels import Int8Matrix
from localspec.llama import lib
from localspec.types import Float32Array


class _Traits(ctypes.Structure):
    """ggml's `ggml_type_traits`."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


def output_matrix(header: Header) -> Int8Matrix:
    """Of the model in a file, in 8 bits: its output matrix, or its embeddings, where one serves as both.

    Raises:
        ModelFileError: it has neither, or in a number format that ggml does not unpack.
    """
    parts = read_parts(header.path)
    for name in ("output.weight", "token_embd.weight"):
        for part in parts:
            for tensor in part.tensors:
                if tensor.name == name:
                    return _unpacked(part, tensor)
    raise ModelFileError(f"{header.path} has no output matrix.")


def _unpacked(header: Header, tensor: Tensor) -> Int8Matrix:
    columns, rows = tensor.shape
    row_bytes = tensor.size // rows

    def read(start: int, stop: int) -> Float32Array:
        data = header.read(tensor.offset + start * row_bytes, (stop - start) * row_bytes)
        floats = _floats(np.frombuffer(data, dtype=np.uint8), tensor, (stop - start) * columns)
        return floats.reshape(stop - start, columns)

    return Int8Matrix.in_parts((rows, columns), read)


def _floats(data: np.ndarray[tuple[int], np.dtype[np.uint8]], tensor: Tensor, count: int) -> Float32Array:
    if tensor.type == "F32":
        return data.view(np.float32)
    find = lib.c_function("ggml_get_type_traits", ctypes.POINTER(_Traits), ctypes.c_int)
    traits = find(TYPE_NUMBERS[tensor.type]).contents
    if not traits.to_float:
        raise ModelFileError(f"{tensor.name} is in {tensor.type}, which ggml does not unpack.")
    found = np.empty(count, dtype=np.float32)
    traits.to_float(data.ctypes.data, found.ctypes.data, count)
    return found
