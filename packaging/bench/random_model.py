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
from model_file import Filler, ModelFile
from shapes import SHAPES, Matrix, Shape

from localspec import paths

TYPES = {
    "Q8_0": (Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (Type.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "Q4_1": (Type.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1),
    "Q5_0": (Type.Q5_0, gguf.LlamaFileType.MOSTLY_Q5_0),
    "Q5_1": (Type.Q5_1, gguf.LlamaFileType.MOSTLY_Q5_1),
    "Q2_K": (Type.Q2_K, gguf.LlamaFileType.MOSTLY_Q2_K),
    "Q3_K_S": (Type.Q3_K, gguf.LlamaFileType.MOSTLY_Q3_K_S),
    "IQ4_XS": (Type.IQ4_XS, gguf.LlamaFileType.MOSTLY_IQ4_XS),
    "IQ2_XXS": (Type.IQ2_XXS, gguf.LlamaFileType.MOSTLY_IQ2_XXS),
    "IQ2_XS": (Type.IQ2_XS, gguf.LlamaFileType.MOSTLY_IQ2_XS),
    "IQ2_S": (Type.IQ2_S, gguf.LlamaFileType.MOSTLY_IQ2_S),
    "IQ3_XXS": (Type.IQ3_XXS, gguf.LlamaFileType.MOSTLY_IQ3_XXS),
    "IQ3_S": (Type.IQ3_S, gguf.LlamaFileType.MOSTLY_IQ3_S),
    "TQ2_0": (Type.TQ2_0, gguf.LlamaFileType.MOSTLY_TQ2_0),
    "Q4_K_M": (Type.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "Q5_K_M": (Type.Q5_K, gguf.LlamaFileType.MOSTLY_Q5_K_M),
    "Q6_K": (Type.Q6_K, gguf.LlamaFileType.MOSTLY_Q6_K),
    "IQ4_NL": (Type.IQ4_NL, gguf.LlamaFileType.MOSTLY_IQ4_NL),
    "F16": (Type.F16, gguf.LlamaFileType.MOSTLY_F16),
    "BF16": (Type.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
"""Name -> the type of most matrices, and the file's."""


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


def write(path: Path, name: str, shape: Shape) -> None:
    """Writes the file: 0.55 (four bits) to 2.0 GB (F16) in the 1 B shape."""
    source = gguf.GGUFReader(paths.bundled("tiny-target-q8_0.gguf"))
    vocabulary = len(source.get_field("tokenizer.ggml.tokens").contents())
    matrices = [(matrix, type_of(name, matrix, shape)) for matrix in shape.matrices(vocabulary)]
    norms = list(shape.norms())
    with ModelFile(path, shape, source, epsilon=1e-5, rope_base=10000.0) as file:
        file.describe(f"random {name}", TYPES[name][1])
        file.tokenizer()
        for title in norms:
            file.announce_vector(title, shape.hidden)
        for matrix, kind in matrices:
            file.announce_matrix(matrix, kind)
        file.start()
        for _ in norms:
            file.write(np.ones(shape.hidden, dtype=np.float32))
        filler = Filler()
        for matrix, kind in matrices:
            file.write(filler.matrix(kind, matrix.rows, matrix.columns))


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
