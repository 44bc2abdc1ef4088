"""Writes a GGUF of real cost and no sense: llama architecture, random weights, the bundled pair's tokenizer.

    python packaging/bench/random_model.py FILE.gguf [--type Q4_K_M] [--shape 1b]

The default shape is that of a common 1 B model (hidden 2,048, 16 layers, 32 heads, 8 KV heads, feed-forward 8,192)
with the bundled vocabulary of 4,096, so the output matrix costs less than a real one's. Types are mixed as
llama.cpp's quantiser mixes them (Q4_K_M has Q6_K in half of attn_v and ffn_down). For timing passes, nothing else.
Blocks are random bytes with fitting scales, so that every type takes seconds. Needs: pip install -e ".[bench]".
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from shapes import SHAPES, Bytes, Matrix, Shape, Writer, bundled, row_bytes

TYPES = {
    "Q8_0": (Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (Type.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "Q4_K_M": (Type.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "Q5_K_M": (Type.Q5_K, gguf.LlamaFileType.MOSTLY_Q5_K_M),
    "Q6_K": (Type.Q6_K, gguf.LlamaFileType.MOSTLY_Q6_K),
    "IQ4_NL": (Type.IQ4_NL, gguf.LlamaFileType.MOSTLY_IQ4_NL),
    "F16": (Type.F16, gguf.LlamaFileType.MOSTLY_F16),
    "BF16": (Type.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
"""Name -> the type of most matrices, and the file's."""

SCALES: dict[Type, tuple[tuple[int, float], ...]] = {
    Type.Q8_0: ((0, 1.0),),
    Type.Q4_0: ((0, 1.0),),
    Type.IQ4_NL: ((0, 1.0),),
    Type.Q4_K: ((0, 1.0), (2, 7.5)),  # the minimum's scale makes the mean of 0..15 vanish
    Type.Q5_K: ((0, 1.0), (2, 15.5)),
    Type.Q6_K: ((208, 1.0),),
}
"""Where a block's float16 scales are (byte), relative to the first. Layouts: ggml-common.h."""


def type_of(name: str, matrix: Matrix, shape: Shape) -> Type:
    """The type llama.cpp's quantiser gives a matrix in a file of that name."""
    base, layer, layers = TYPES[name][0], matrix.layer, shape.layers
    if base in (Type.F16, Type.BF16, Type.Q8_0):
        return base
    if matrix.name == "token_embd":
        return Type.Q6_K  # it is the output matrix too
    eighth = layers // 8
    if name in ("Q4_K_M", "Q5_K_M") and matrix.name in ("attn_v", "ffn_down"):
        more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
        return Type.Q6_K if more else base
    grouped = shape.heads // shape.kv_heads >= 4
    if name == "IQ4_NL" and ((matrix.name == "attn_v" and grouped) or (matrix.name == "ffn_down" and layer < eighth)):
        return Type.Q5_K
    return base


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
            places = np.arange(start, start + rows * columns, dtype=np.int64) % len(self._floats)
            return self._sixteen_bits(kind, np.float32(deviation))[places].view(np.uint8).reshape(rows, -1)
        return self._blocks(kind, rows, columns, deviation / self._deviation(kind))

    def _sixteen_bits(self, kind: Type, deviation: np.float32) -> Bytes:
        """The pool of random numbers, as uint16."""
        values = self._floats * deviation
        return values.astype(np.float16).view(np.uint16) if kind == Type.F16 else values.view(np.uint16)[1::2]

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
        return blocks.reshape(rows, -1)


def write(path: Path, name: str, shape: Shape) -> None:
    """Writes the file: 0.55 (four bits) to 2.0 GB (F16) in the 1 B shape."""
    source = bundled("target")
    vocabulary = len(source.get_field("tokenizer.ggml.tokens").contents())
    writer = Writer(path, shape, source, epsilon=1e-5, rope_base=10000.0)
    writer.describe(f"random {name}", TYPES[name][1])
    matrices = [(matrix, type_of(name, matrix, shape)) for matrix in shape.matrices(vocabulary)]
    norms = list(shape.norms())
    for title in norms:
        writer.announce_vector(title, shape.hidden)
    for matrix, kind in matrices:
        writer.announce_matrix(matrix, kind)
    writer.start()
    for _ in norms:
        writer.write(np.ones(shape.hidden, dtype=np.float32))
    filler = Filler()
    for matrix, kind in matrices:
        writer.write(filler.matrix(kind, matrix.rows, matrix.columns))
    writer.finish()


def main() -> None:
    """File out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=list(TYPES), default="Q8_0")
    parser.add_argument("--shape", choices=list(SHAPES), default="1b")
    options = parser.parse_args()
    write(options.file, options.type, SHAPES[options.shape])


if __name__ == "__main__":
    main()
