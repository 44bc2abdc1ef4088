"""Writes the bundled pair blown up to 1 B and 0.1 B parameters: the same function at the cost of a real pair.

    python packaging/bench/padded_pair.py FOLDER [--check]

The tiny models' weights stand in the first rows and columns; everything that could add to what they compute is zero
(embeddings, attention outputs and feed-forward outputs of the new channels, heads, units and layers), the rest is
random, so that a pass reads and multiplies what it would in a trained model. RMSNorm takes the mean over more
channels: its weights and epsilon are scaled to match. Text, and what of a draft is accepted, are therefore the
bundled pair's, up to the rounding of other sums; `--check` compares greedy answers, which takes a minute or two.
Writes FOLDER/padded-target-1b.gguf (1.0 GB) and FOLDER/padded-draft-100m.gguf. Needs: pip install -e ".[bench]".
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from random_model import Filler
from shapes import SHAPES, Bytes, Matrix, Shape, Writer, bundled, row_bytes
from shipped import short_prompts

from localspec import Engine, SamplingParams, paths

BLOCK, BLOCK_BYTES = gguf.GGML_QUANT_SIZES[Type.Q8_0]


@dataclass(frozen=True)
class Small:
    """A model of the bundled pair, read."""

    reader: gguf.GGUFReader
    shape: Shape
    epsilon: float
    rope_base: float
    vocabulary: int
    tensors: dict[str, Any]

    @classmethod
    def read(cls, name: str) -> Small:
        reader = bundled(name)

        def fact(key: str) -> Any:
            field = reader.get_field(f"llama.{key}")
            if field is None:
                raise SystemExit(f"the bundled {name} states no llama.{key}")
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
            raise SystemExit(f"the bundled {name} has an output matrix of its own; only tied embeddings are known here")
        wrong = {t.tensor_type.name for t in tensors.values()} - {"F32", "Q8_0"}
        if wrong:
            raise SystemExit(f"the bundled {name} has tensors of types {wrong}, not Q8_0")
        epsilon, base = fact("attention.layer_norm_rms_epsilon"), fact("rope.freq_base")
        vocabulary = int(tensors["token_embd.weight"].shape[1])
        return cls(reader, shape, epsilon, base, vocabulary, tensors)


class Padding:
    """Where rows and columns of the small model stand in the large one."""

    def __init__(self, small: Shape, large: Shape) -> None:
        if small.head_size != large.head_size:
            raise SystemExit(f"heads have {small.head_size} values in the bundled pair, {large.head_size} in the shape")
        self._small, self._large = small, large
        group, wider = small.heads // small.kv_heads, large.heads // large.kv_heads
        if group > wider or small.kv_heads > large.kv_heads:
            raise SystemExit("the shape has too few heads")
        # Head g of a KV head's group keeps its KV head.
        heads = [kv * wider + g for kv in range(small.kv_heads) for g in range(group)]
        size = small.head_size
        self._head_places = np.concatenate([np.arange(head * size, (head + 1) * size) for head in heads])

    def rows(self, name: str) -> np.ndarray[Any, Any]:
        """Row i of the small matrix is row [i] of the large one."""
        if name == "attn_q":
            return self._head_places
        if name in ("attn_k", "attn_v"):
            return np.arange(self._small.head_size * self._small.kv_heads)
        return np.arange(self._small.feed_forward if name in ("ffn_gate", "ffn_up") else self._small.hidden)

    def columns(self, name: str) -> np.ndarray[Any, Any]:
        if name == "attn_output":
            return self._head_places
        return np.arange(self._small.feed_forward if name == "ffn_down" else self._small.hidden)


ZERO = ("token_embd", "attn_output", "ffn_down")
"""What writes to the channels every layer reads: nothing but the small model's part may be there."""


def padded(small: Small, matrix: Matrix, places: Padding, filler: Filler) -> Bytes:
    """The Q8_0 rows of a matrix of the large model; whole blocks of the small one are copied as they are."""
    if matrix.name in ZERO:
        data: Bytes = np.zeros((matrix.rows, row_bytes(Type.Q8_0, matrix.columns)), dtype=np.uint8)
    else:
        data = filler.matrix(Type.Q8_0, matrix.rows, matrix.columns)
    if matrix.layer >= small.shape.layers:
        return data
    source = small.tensors[matrix.title].data.reshape(-1, small.tensors[matrix.title].data.shape[-1])
    rows = np.arange(len(source)) if matrix.name == "token_embd" else places.rows(matrix.name)
    blocks = places.columns(matrix.name)[::BLOCK] // BLOCK
    large = data.reshape(matrix.rows, -1, BLOCK_BYTES)
    large[np.ix_(rows, blocks)] = source.reshape(len(rows), len(blocks), BLOCK_BYTES)
    return data


def write(name: str, shape: Shape, path: Path) -> None:
    """Pads a model of the bundled pair ("target" or "draft") to a shape."""
    small = Small.read(name)
    if small.shape.layers > shape.layers or small.shape.hidden % BLOCK or small.shape.feed_forward % BLOCK:
        raise SystemExit(f"the bundled {name} does not fit the shape")
    large = Shape(shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.feed_forward, small.shape.context)
    ratio = small.shape.hidden / large.hidden  # of the means RMSNorm takes
    writer = Writer(path, large, small.reader, epsilon=small.epsilon * ratio, rope_base=small.rope_base)
    writer.describe(f"padded {name}", gguf.LlamaFileType.MOSTLY_Q8_0)
    norms, matrices = list(large.norms()), list(large.matrices(small.vocabulary))
    for title in norms:
        writer.announce_vector(title, large.hidden)
    for matrix in matrices:
        writer.announce_matrix(matrix, Type.Q8_0)
    writer.start()
    for title in norms:
        weights = np.ones(large.hidden, dtype=np.float32)
        if title in small.tensors:
            weights[: small.shape.hidden] = small.tensors[title].data * np.float32(math.sqrt(ratio))
        writer.write(weights)
    places, filler = Padding(small.shape, large), Filler()
    for matrix in matrices:
        writer.write(padded(small, matrix, places, filler))
    writer.finish()


def check(name: str, path: Path, prompts: int, tokens: int) -> None:
    """Compares greedy answers of the padded model with the bundled one's, on llama.cpp's own kernels."""
    texts: list[list[list[int]]] = []
    for model in (paths.bundled(f"tiny-{name}-q8_0.gguf"), path):
        with Engine.load(model, drafter="none", exact="off", wide=False, context=512) as engine:
            answers = []
            for prompt in short_prompts(engine, prompts, 256):
                generation = engine.generate(prompt, sampling=SamplingParams(temperature=0.0), max_tokens=tokens)
                answers.append([token for event in generation for token in event.tokens])
            texts.append(answers)
    equal = sum(left == right for left, right in zip(*texts, strict=True))
    first_forks = [_common(left, right) for left, right in zip(*texts, strict=True) if left != right]
    total = sum(len(answer) for answer in texts[0])
    print(f"{name}: {equal} of {len(texts[0])} greedy answers equal ({total} tokens); forks at {first_forks or 'none'}")


def _common(left: list[int], right: list[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def main() -> None:
    """Folder out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="compare greedy answers with the bundled pair's")
    parser.add_argument("--shape", choices=list(SHAPES), default="1b", help="of the target; the draft's is 100m")
    parser.add_argument("--prompts", type=int, default=12, help="of the check")
    parser.add_argument("--tokens", type=int, default=48, help="of the check, a prompt")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    draft_shape = "100m" if options.shape == "1b" else options.shape
    for name, shape in (("target", options.shape), ("draft", draft_shape)):
        path = options.folder / f"padded-{name}-{shape}.gguf"
        write(name, SHAPES[shape], path)
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")
        if options.check:
            check(name, path, options.prompts, options.tokens)


if __name__ == "__main__":
    main()
