"""Writes GGUF files of the llama architecture tensor by tensor, with the tokenizer of another file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import gguf
import numpy as np
from shapes import Matrix, Shape

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


# Random weights of any format: what a pass reads and multiplies where a benchmark model computes nothing.

Type = gguf.GGMLQuantizationType

SCALES: dict[Type, tuple[tuple[int, float], ...]] = {
    Type.Q8_0: ((0, 1.0),),
    Type.Q4_0: ((0, 1.0),),
    Type.Q4_1: ((0, 1.0), (2, -7.5)),  # the minimum makes the mean of 0..15 vanish
    Type.Q5_0: ((0, 1.0),),
    Type.Q5_1: ((0, 1.0), (2, -15.5)),
    Type.IQ4_NL: ((0, 1.0),),
    Type.IQ4_XS: ((0, 1.0),),
    Type.IQ2_XXS: ((0, 1.0),),
    Type.IQ2_XS: ((0, 1.0),),
    Type.IQ2_S: ((0, 1.0),),
    Type.IQ3_XXS: ((0, 1.0),),
    Type.IQ3_S: ((0, 1.0),),
    Type.Q2_K: ((80, 1.0), (82, 1.5)),
    Type.Q3_K: ((108, 1.0),),
    Type.TQ2_0: ((64, 1.0),),
    Type.Q4_K: ((0, 1.0), (2, 7.5)),  # the minimum's scale makes the mean of 0..15 vanish
    Type.Q5_K: ((0, 1.0), (2, 15.5)),
    Type.Q6_K: ((208, 1.0),),
}
"""Where a block's float16 scales are (byte), relative to the first. Layouts: ggml-common.h."""


class Filler:
    """Random matrices of any type with a chosen deviation."""

    def __init__(self, seed: int = 1) -> None:
        self._generator = np.random.default_rng(seed)
        self._deviations: dict[Type, float] = {}
        self._floats = self._generator.standard_normal(1 << 22).astype(np.float32)

    def matrix(self, kind: Type, rows: int, columns: int) -> Bytes:
        """uint8[rows, bytes of a row], deviation 1 / sqrt(columns), so that activations keep their size."""
        deviation = columns**-0.5
        if kind in (Type.F16, Type.BF16):
            start = int(self._generator.integers(0, len(self._floats)))
            pool = np.roll(self._sixteen_bits(kind, np.float32(deviation)), -start)
            return np.resize(pool, rows * columns).view(np.uint8).reshape(rows, -1)
        return self._blocks(kind, rows, columns, deviation / self._deviation(kind))

    def _sixteen_bits(self, kind: Type, deviation: np.float32) -> Bytes:
        """The pool of random numbers, as uint16."""
        values = self._floats * deviation
        bits: Bytes = values.astype(np.float16).view(np.uint16) if kind == Type.F16 else values.view(np.uint16)[1::2]
        return bits

    def _deviation(self, kind: Type) -> float:
        """Of blocks of random bytes whose scale is 1."""
        if kind not in self._deviations:
            sample = self._blocks(kind, 64, 4096, 1.0)
            self._deviations[kind] = float(gguf.dequantize(sample, kind).std())
        return self._deviations[kind]

    def _blocks(self, kind: Type, rows: int, columns: int, scale: float) -> Bytes:
        data = np.frombuffer(self._generator.bytes(rows * row_bytes(kind, columns)), dtype=np.uint8)
        blocks = data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]).copy()
        for place, factor in SCALES[kind]:
            blocks[:, place : place + 2] = np.frombuffer(np.float16(scale * factor).tobytes(), dtype=np.uint8)
        whole: Bytes = blocks.reshape(rows, -1)
        return whole
