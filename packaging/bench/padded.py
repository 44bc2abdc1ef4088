"""Real cost, trained behaviour: the bundled models' weights inside larger shapes.

The small model's weights stand in the first rows and columns. Everything that could add to what it computes is zero
(embeddings, attention outputs and feed-forward outputs of the new channels, heads, units and layers); the rest is
random, so that a pass reads and multiplies what it would in a trained model. RMSNorm takes the mean over more channels:
its weights are scaled by sqrt(d / D) and its epsilon by d / D (exact when D / d is a power of 4). Text, and what of a
draft is accepted, are therefore the small pair's, up to rounding; what a pass costs is the large shape's.

A vocabulary can be padded, too, because a small one hides what an output matrix costs. Embeddings are tied, and a row
of zeros would be a logit of 0, which may win; so one new channel carries a constant that no layer reads or writes, and
a padding token's row has a large negative number there. The same number is added to every real logit; no text hears
of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from model_file import Bytes, Filler, ModelFile, row_bytes
from shapes import Matrix, Shape

from localspec.bench.sides import PADDED
from localspec.errors import UsageError

Type = gguf.GGMLQuantizationType
FORMATS = {"Q8_0": (Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0), "F16": (Type.F16, gguf.LlamaFileType.MOSTLY_F16)}
"""What can be written directly; llama.cpp's quantiser makes the others of F16."""
ZERO = ("token_embd", "attn_output", "ffn_down")
"""What writes to the channels every layer reads: nothing but the small model's part may be there."""
_SUPERBLOCK = 256
"""Values that share a scale in K formats, weights and activations alike: the constant has such a block for itself."""
_CONSTANT_CHANNEL, _LOUD_CHANNEL, _UNUSED_TOKEN_PENALTY = 2.0**-10, 700.0, 100.0
"""In the last channel: of every real token's embedding; times 1 / RMS what the final norm makes of it; minus the
number in a padding token's row."""


@dataclass(frozen=True)
class Small:
    """A model to be padded, read."""

    reader: gguf.GGUFReader
    path: Path
    shape: Shape
    epsilon: float
    rope_base: float
    vocabulary: int
    tensors: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Small:
        """Reads a file of the llama architecture with tied embeddings, in Q8_0.

        Raises:
            UsageError: it is of another kind.
        """
        reader = gguf.GGUFReader(path)

        def fact(key: str) -> Any:
            field = reader.get_field(f"llama.{key}")
            if field is None:
                raise UsageError(f"{path.name} states no llama.{key}; only the llama architecture can be padded.")
            return field.contents()

        shape = Shape(
            fact("embedding_length"),
            fact("block_count"),
            fact("attention.head_count"),
            fact("attention.head_count_kv"),
            fact("feed_forward_length"),
            fact("context_length"),
        )
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        if "output.weight" in tensors:
            raise UsageError(f"{path.name} has an output matrix of its own; only tied embeddings can be padded.")
        wrong = {tensor.tensor_type.name for tensor in tensors.values()} - {"F32", "Q8_0"}
        if wrong:
            raise UsageError(f"{path.name} has tensors in {', '.join(sorted(wrong))}; only Q8_0 can be padded.")
        epsilon, base = fact("attention.layer_norm_rms_epsilon"), fact("rope.freq_base")
        vocabulary = int(tensors["token_embd.weight"].shape[1])
        return cls(reader, path, shape, epsilon, base, vocabulary, tensors)


class Padding:
    """Where rows and columns of the small model stand in the large one."""

    def __init__(self, small: Shape, large: Shape) -> None:
        """
        Raises:
            UsageError: the small one does not fit into the large one.
        """
        if small.head_size != large.head_size:
            raise UsageError(f"Heads have {small.head_size} values in the model, {large.head_size} in the shape.")
        self._small, self._large = small, large
        group, wider = small.heads // small.kv_heads, large.heads // large.kv_heads
        narrow = small.hidden > large.hidden or small.feed_forward > large.feed_forward
        if group > wider or small.kv_heads > large.kv_heads or small.layers > large.layers or narrow:
            raise UsageError("The shape is smaller than the model.", "Choose a larger one.")
        # Head g of a KV head's group keeps its KV head.
        heads = [kv * wider + g for kv in range(small.kv_heads) for g in range(group)]
        size = small.head_size
        self._head_places = np.concatenate([np.arange(head * size, (head + 1) * size) for head in heads])

    def rows(self, name: str) -> Bytes:
        """Row i of the small matrix is row [i] of the large one."""
        if name == "attn_q":
            return self._head_places
        if name in ("attn_k", "attn_v"):
            return np.arange(self._small.head_size * self._small.kv_heads)
        return np.arange(self._small.feed_forward if name in ("ffn_gate", "ffn_up") else self._small.hidden)

    def columns(self, name: str) -> Bytes:
        if name == "attn_output":
            return self._head_places
        return np.arange(self._small.feed_forward if name == "ffn_down" else self._small.hidden)


@dataclass(frozen=True)
class Padded:
    """A small model in a large shape, to be written."""

    small: Small
    shape: Shape
    places: Padding
    vocabulary: int

    @classmethod
    def plan(cls, small: Small, shape: Shape, vocabulary: int = 0) -> Padded:
        """
        Args:
            small: the model whose text it has.
            shape: what it costs; the context length stays the small model's.
            vocabulary: tokens; 0 = as many as the small model has.

        Raises:
            UsageError: the shape or vocabulary is too small.
        """
        shape = replace(shape, context=small.shape.context)
        if 0 < vocabulary < small.vocabulary:
            raise UsageError(f"The vocabulary has {small.vocabulary} tokens already; {vocabulary} is less.")
        found = cls(small, shape, Padding(small.shape, shape), vocabulary or small.vocabulary)
        if found.more_tokens and small.shape.hidden > shape.hidden - _SUPERBLOCK:
            raise UsageError(
                f"A padded vocabulary needs a shape of {small.shape.hidden + _SUPERBLOCK} channels or more."
            )
        return found

    @property
    def more_tokens(self) -> int:
        """Padding tokens."""
        return self.vocabulary - self.small.vocabulary

    def write(self, path: Path, title: str, type_name: str, progress: Callable[[float], None] | None = None) -> None:
        """Writes the file.

        Args:
            path: where to.
            title: what the shape is called.
            type_name: one of `FORMATS`.
            progress: called with the share done.
        """
        small, large = self.small, self.shape
        kind, file_type = FORMATS[type_name]
        ratio = small.shape.hidden / large.hidden  # of the means RMSNorm takes
        norms, matrices = list(large.norms()), list(large.matrices(self.vocabulary))
        with ModelFile(path, large, small.reader, epsilon=small.epsilon * ratio, rope_base=small.rope_base) as file:
            tokens = f", {self.vocabulary:,} tokens" if self.more_tokens else ""
            label = (
                f"{title} shape{tokens}, padded from {small.path.stem}: it costs the one and says what the other says"
            )
            file.describe(f"{small.path.stem} padded to {title}", file_type, {PADDED: label})
            file.tokenizer(self.vocabulary)
            for name in norms:
                file.announce_vector(name, large.hidden)
            for matrix in matrices:
                file.announce_matrix(matrix, kind)
            file.start()
            for name in norms:
                file.write(self._norm(name, math.sqrt(ratio)))
            filler, whole, done = Filler(), sum(one.rows * one.columns for one in matrices), 0
            for matrix in matrices:
                file.write(self._matrix(matrix, kind, filler))
                done += matrix.rows * matrix.columns
                if progress is not None:
                    progress(done / whole)

    def _norm(self, name: str, scale: float) -> Bytes:
        weights = np.ones(self.shape.hidden, dtype=np.float32)
        if name in self.small.tensors:
            weights[: self.small.shape.hidden] = self.small.tensors[name].data * np.float32(scale)
        if self.more_tokens:
            weights[-1] = _LOUD_CHANNEL / _CONSTANT_CHANNEL if name == "output_norm.weight" else 0.0
        return weights

    def _matrix(self, matrix: Matrix, kind: Type, filler: Filler) -> Bytes:
        """Its rows as they lie in the file; blocks of the small model's are copied as they are."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[Type.Q8_0] if kind == Type.Q8_0 else (1, 2)
        if matrix.name in ZERO:
            data: Bytes = np.zeros((matrix.rows, row_bytes(kind, matrix.columns)), dtype=np.uint8)
        else:
            data = filler.matrix(kind, matrix.rows, matrix.columns)
        if matrix.layer < self.small.shape.layers:
            source = self._source(matrix.title, kind)
            rows = np.arange(len(source)) if matrix.name == "token_embd" else self.places.rows(matrix.name)
            blocks = self.places.columns(matrix.name)[::block] // block
            large = data.reshape(matrix.rows, -1, block_bytes)
            large[np.ix_(rows, blocks)] = source.reshape(len(rows), len(blocks), block_bytes)
        if matrix.name == "token_embd" and self.more_tokens:
            last = np.full((matrix.rows, block), 0.0, dtype=np.float32)
            last[:, -1] = np.where(
                np.arange(matrix.rows) < self.small.vocabulary, _CONSTANT_CHANNEL, -_UNUSED_TOKEN_PENALTY
            )
            data[:, -block_bytes:] = gguf.quantize(last, kind).view(np.uint8).reshape(matrix.rows, -1)
        return data

    def _source(self, title: str, kind: Type) -> Bytes:
        """uint8[rows, bytes] of a small matrix in the format of the file."""
        tensor = self.small.tensors[title]
        data = tensor.data.reshape(-1, tensor.data.shape[-1])
        if kind == Type.Q8_0:
            return np.asarray(data)
        values = gguf.dequantize(data, tensor.tensor_type).astype(np.float16)
        return values.view(np.uint8).reshape(len(data), -1)
