"""Shapes of common llama models, and a GGUF writer that streams tensors of such a shape to a file.

Shared by random_model.py and padded_pair.py; needs the `gguf` package (extra `bench`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from localspec import paths

Bytes = np.ndarray[Any, Any]
"""A tensor's data as it lies in the file: uint8[rows, bytes of a row], or float32[n]."""


class Matrix(NamedTuple):
    """A weight matrix of the architecture."""

    name: str
    layer: int
    """-1 outside the layers."""
    rows: int
    columns: int

    @property
    def title(self) -> str:
        """Its name in the file."""
        return f"{self.name}.weight" if self.layer < 0 else f"blk.{self.layer}.{self.name}.weight"


@dataclass(frozen=True)
class Shape:
    """The sizes of a model of the llama architecture with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    context: int = 4096

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def matrices(self, vocabulary: int) -> Iterator[Matrix]:
        """Every weight matrix, in the order of the file."""
        kv = self.head_size * self.kv_heads
        yield Matrix("token_embd", -1, vocabulary, self.hidden)
        for layer in range(self.layers):
            yield Matrix("attn_q", layer, self.hidden, self.hidden)
            yield Matrix("attn_k", layer, kv, self.hidden)
            yield Matrix("attn_v", layer, kv, self.hidden)
            yield Matrix("attn_output", layer, self.hidden, self.hidden)
            yield Matrix("ffn_gate", layer, self.feed_forward, self.hidden)
            yield Matrix("ffn_up", layer, self.feed_forward, self.hidden)
            yield Matrix("ffn_down", layer, self.hidden, self.feed_forward)

    def norms(self) -> Iterator[str]:
        """Every vector of norm weights, `hidden` long."""
        yield "output_norm.weight"
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm.weight"
            yield f"blk.{layer}.ffn_norm.weight"


SHAPES = {
    "1b": Shape(hidden=2048, layers=16, heads=32, kv_heads=8, feed_forward=8192),
    "100m": Shape(hidden=768, layers=12, heads=12, kv_heads=4, feed_forward=3072),
    "small": Shape(hidden=512, layers=8, heads=8, kv_heads=2, feed_forward=2048),
}
"""1.0 B and 0.1 B parameters, and one for trying a script out; the bundled vocabulary of 4,096 is small, so the output
matrix costs less than a real one's. Heads have 64 values, as the bundled pair's."""


class Writer:
    """A GGUF file in the making: announce every tensor, `start`, then write their data in the same order.

    Nothing is kept in memory. The file appears under its name when it is whole.
    """

    def __init__(self, path: Path, shape: Shape, source: gguf.GGUFReader, *, epsilon: float, rope_base: float) -> None:
        """Takes the tokenizer and chat template from `source`."""
        self._path, self._half = path, path.with_name(path.name + ".half")
        self._writer = writer = gguf.GGUFWriter(self._half, "llama")
        for field in source.fields.values():
            if field.name.startswith("tokenizer."):
                inner = field.types[1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), field.types[0], inner)
        writer.add_context_length(shape.context)
        writer.add_embedding_length(shape.hidden)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.feed_forward)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_rope_dimension_count(shape.head_size)
        writer.add_rope_freq_base(rope_base)
        writer.add_layer_norm_rms_eps(epsilon)

    def describe(self, name: str, file_type: int) -> None:
        """What the file calls itself, and llama.cpp's number of its quantisation."""
        self._writer.add_name(name)
        self._writer.add_file_type(file_type)

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

    def finish(self) -> None:
        self._writer.close()
        os.replace(self._half, self._path)


def row_bytes(kind: gguf.GGMLQuantizationType, columns: int) -> int:
    """Bytes of a row of `columns` values."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if columns % block:
        raise SystemExit(f"{kind.name} takes rows of a multiple of {block} values, not {columns}.")
    return columns // block * size


def bundled(name: str) -> gguf.GGUFReader:
    """A model of the bundled pair: "target" or "draft"."""
    return gguf.GGUFReader(paths.bundled(f"tiny-{name}-q8_0.gguf"))
