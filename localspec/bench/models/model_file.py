"""Writes GGUF files of the llama architecture tensor by tensor, with the tokenizer of another file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from localspec.bench.models.gguf_package import gguf
from localspec.bench.models.shapes import Matrix, Shape
from localspec.errors import UsageError

Bytes = np.ndarray[Any, Any]
"""A tensor's data as it lies in the file: uint8[rows, bytes of a row], or float32[n]."""
_UNUSED = 5
"""llama.cpp's type of tokens that stand for nothing."""


class ModelFile:
    """A file in the making: announce every tensor, `start`, then write their data in the same order.

    No tensor is kept in memory. A context manager: the file appears under its name when it is whole, or not at all.
    """

    def __init__(self, path: Path, shape: Shape, source: gguf.GGUFReader, *, epsilon: float, rope_base: float) -> None:
        """Takes the tokenizer and chat template from `source`."""
        self._path, self._half = path, path.with_name(f"{path.name}.{os.getpid()}.half")
        self._source = source
        self._writer = writer = gguf.GGUFWriter(self._half, "llama")
        writer.add_context_length(shape.context)
        writer.add_embedding_length(shape.hidden)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.feed_forward)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_rope_dimension_count(shape.head_size)
        writer.add_rope_freq_base(rope_base)
        writer.add_layer_norm_rms_eps(epsilon)

    def describe(self, name: str, file_type: int, facts: Mapping[str, str] | None = None) -> None:
        """What the file calls itself, llama.cpp's number of its quantisation, and further texts by key."""
        self._writer.add_name(name)
        self._writer.add_file_type(file_type)
        for key, value in (facts or {}).items():
            self._writer.add_string(key, value)

    def tokenizer(self, vocabulary: int = 0) -> None:
        """The source's tokenizer, filled up to so many tokens with such as no text has."""
        for field in self._source.fields.values():
            if not field.name.startswith("tokenizer."):
                continue
            content, inner = field.contents(), field.types[1] if len(field.types) > 1 else None
            if field.name == "tokenizer.ggml.tokens":
                content = [*content, *(f"<|padding_{index}|>" for index in range(len(content), vocabulary))]
            elif field.name == "tokenizer.ggml.token_type":
                content = [*content, *[_UNUSED] * (vocabulary - len(content))]
            elif field.name == "tokenizer.ggml.scores":
                content = [*content, *[-1e6] * (vocabulary - len(content))]
            self._writer.add_key_value(field.name, content, field.types[0], inner)

    def announce_matrix(self, matrix: Matrix, kind: gguf.GGMLQuantizationType) -> None:
        size = (matrix.rows, row_bytes(kind, matrix.columns))
        self._writer.add_tensor_info(matrix.title, size, np.dtype(np.uint8), size[0] * size[1], kind)

    def announce_vector(self, title: str, length: int) -> None:
        self._writer.add_tensor_info(title, (length,), np.dtype(np.float32), 4 * length)

    def start(self) -> None:
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_ti_data_to_file()

    def write(self, data: Bytes) -> None:
        """The next tensor."""
        self._writer.write_tensor_data(np.ascontiguousarray(data))

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        if error is None:
            os.replace(self._half, self._path)
        else:
            self._half.unlink(missing_ok=True)


def row_bytes(kind: gguf.GGMLQuantizationType, columns: int) -> int:
    """Bytes of a row of `columns` values.

    Raises:
        UsageError: the format has no such rows.
    """
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if columns % block:
        raise UsageError(f"{kind.name} takes rows of a multiple of {block} values, not {columns}.")
    return int(columns // block * size)
