"""An EAGLE-3 head inside a larger shape, for a padded target of `localspec bench make-pair`: it costs what a head of
that target's sizes would, and guesses what the small one guesses.

The small head stands in the first channels, heads and units; the rest is zero. Its vocabulary stays as it is, so what a
large output matrix would cost is not in there.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import export
import gguf
import numpy as np
from eagle3_head import HeadShape
from export_eagle3 import add_q8_0, add_vocabulary, describe

from localspec.bench.models.padded import Padding
from localspec.bench.models.shapes import PADDED, Shape


def shape_of(reader: gguf.GGUFReader, architecture: str) -> Shape:
    """The sizes that a file states."""
    keys = ("embedding_length", "block_count", "attention.head_count", "attention.head_count_kv",
            "feed_forward_length", "context_length")  # fmt: skip
    return Shape(*(int(reader.fields[f"{architecture}.{key}"].contents()) for key in keys))


def placed(title: str, small: Shape, large: Shape, places: Padding, own: int) -> tuple[Any, Any, tuple[int, int]]:
    """Rows and columns of a matrix in its large form, and the size of that; `own`: rows of the output matrix."""
    name = title.removesuffix(".weight").removeprefix("blk.0.")
    channels = np.arange(small.hidden)
    several = {"fc": 3, "attn_q": 2, "attn_k": 2, "attn_v": 2}.get(name, 1)
    columns = np.concatenate([channels + part * large.hidden for part in range(several)])
    width = several * large.hidden
    if name == "output":
        return np.arange(own), columns, (own, width)
    if name == "fc":
        return channels, columns, (large.hidden, width)
    heights = {"attn_q": large.heads * large.head_size, "attn_k": large.kv_heads * large.head_size,
               "attn_v": large.kv_heads * large.head_size, "ffn_gate": large.feed_forward,
               "ffn_up": large.feed_forward}  # fmt: skip
    if name == "attn_output":
        columns, width = places.columns(name), large.heads * large.head_size
    if name == "ffn_down":
        columns, width = places.columns(name), large.feed_forward
    return places.rows(name), columns, (heights.get(name, large.hidden), width)


def write(head: Path, target: Path, out: Path) -> None:
    """The head in the sizes of a padded target."""
    reader = gguf.GGUFReader(head)
    small, large = shape_of(reader, "eagle3"), shape_of(gguf.GGUFReader(target), "llama")
    places = Padding(small, large)
    ratio = small.hidden / large.hidden  # of the means RMSNorm takes
    writer = gguf.GGUFWriter(str(out), "eagle3")
    writer.add_name(f"{head.stem} padded to {target.stem}")
    writer.add_string(PADDED, f"padded from {head.stem}: it costs what a head of {target.stem} would")
    own = next(np.array(tensor.data) for tensor in reader.tensors if tensor.name == "d2t")
    shape = HeadShape(
        layers=tuple(int(one) for one in reader.fields["eagle3.target_layers"].contents()),
        hidden=large.hidden, target_hidden=large.hidden, heads=large.heads, kv_heads=large.kv_heads,
        head_size=large.head_size, feed_forward=large.feed_forward, vocabulary=len(own), context=large.context,
        rope_base=reader.fields["eagle3.rope.freq_base"].contents(),
        epsilon=reader.fields["eagle3.attention.layer_norm_rms_epsilon"].contents() * ratio,
    )  # fmt: skip
    describe(writer, shape, target)
    for tensor in reader.tensors:
        if tensor.name == "d2t":
            add_vocabulary(writer, own)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            vector = np.zeros(large.hidden, dtype=np.float32)
            vector[: small.hidden] = values * math.sqrt(ratio)
            add_q8_0(writer, tensor.name, vector)
            continue
        rows, columns, size = placed(tensor.name, small, large, places, len(own))
        matrix = np.zeros(size, dtype=np.float32)
        matrix[np.ix_(rows, columns)] = values
        add_q8_0(writer, tensor.name, matrix)
    export.finish(writer)


def main() -> None:
    """Head and padded target in, padded head out."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("head", type=Path)
    options.add_argument("target", type=Path, help="of `localspec bench make-pair`")
    options.add_argument("out", type=Path)
    args = options.parse_args()
    write(args.head, args.target, args.out)


if __name__ == "__main__":
    main()
