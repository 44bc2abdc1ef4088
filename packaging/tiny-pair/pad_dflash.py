"""A DFlash or DSpark head inside a larger shape, for a padded target of `localspec bench make-pair`: it costs what a
head of that target's sizes would, and guesses what the small one guesses.

The small head stands in the first channels, heads and units; the rest is zero. A DSpark head's table and vocabulary
stay as they are. The norms of queries and keys get the epsilon of the larger shape too, which is not felt.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import export
import gguf
import numpy as np
from dflash_head import BlockShape
from export_dflash import describe
from export_eagle3 import add_q8_0
from pad_eagle3 import shape_of

from localspec.bench.models.padded import Padding
from localspec.bench.models.shapes import PADDED, Shape

SAME = ("attn_q_norm.weight", "attn_k_norm.weight", "markov_w1.weight", "markov_w2.weight", "conf_proj.bias")
"""What no size of the target changes, without the layer."""


def matrix(name: str, values: np.ndarray[Any, Any], small: Shape, large: Shape) -> np.ndarray[Any, Any]:
    """A matrix in its large form; `name`: without the layer and ".weight"."""
    places = Padding(small, large)
    if name == "fc":
        parts = np.arange(values.shape[1] // small.hidden)[:, None]
        columns = (np.arange(small.hidden) + parts * large.hidden).ravel()
        found = np.zeros((large.hidden, len(parts) * large.hidden), dtype=np.float32)
        found[: small.hidden, columns] = values
        return found
    if name == "conf_proj":
        return np.insert(values, [small.hidden], np.zeros((1, large.hidden - small.hidden)), axis=1)
    queries, keys = large.heads * large.head_size, large.kv_heads * large.head_size
    heights = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "ffn_gate": large.feed_forward,
               "ffn_up": large.feed_forward}  # fmt: skip
    widths = {"attn_output": queries, "ffn_down": large.feed_forward}
    found = np.zeros((heights.get(name, large.hidden), widths.get(name, large.hidden)), dtype=np.float32)
    found[np.ix_(places.rows(name), places.columns(name))] = values
    return found


def write(head: Path, target: Path, out: Path) -> None:
    """The head in the sizes of a padded target."""
    reader = gguf.GGUFReader(head)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    small, large = shape_of(reader, "dflash"), shape_of(gguf.GGUFReader(target), "llama")
    ratio = small.hidden / large.hidden  # of the means RMSNorm takes
    rank = int(tensors["markov_w1.weight"].shape[0]) if "markov_w1.weight" in tensors else 0
    shape = BlockShape(
        layers=tuple(int(one) for one in reader.fields["dflash.target_layers"].contents()),
        hidden=large.hidden, target_hidden=large.hidden, heads=large.heads, kv_heads=large.kv_heads,
        head_size=large.head_size, feed_forward=large.feed_forward, context=large.context, blocks=small.layers,
        block=reader.fields["dflash.block_size"].contents(), rank=rank,
        rope_base=reader.fields["dflash.rope.freq_base"].contents(),
        epsilon=reader.fields["dflash.attention.layer_norm_rms_epsilon"].contents() * ratio,
    )  # fmt: skip
    writer = gguf.GGUFWriter(str(out), "dflash")
    writer.add_name(f"{head.stem} padded to {target.stem}")
    writer.add_string(PADDED, f"padded from {head.stem}: it costs what a head of {target.stem} would")
    describe(writer, shape, target)
    for title, tensor in tensors.items():
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        name = title.split(".", 2)[2] if title.startswith("blk.") else title
        if name in SAME:
            add_q8_0(writer, title, values)
        elif values.ndim == 1:
            vector = np.zeros(large.hidden, dtype=np.float32)
            vector[: small.hidden] = values * math.sqrt(ratio)
            add_q8_0(writer, title, vector)
        else:
            add_q8_0(writer, title, matrix(name.removesuffix(".weight"), values, small, large))
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
