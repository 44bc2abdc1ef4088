"""Writes a GGUF of real cost and no sense: llama architecture, random Q8_0 weights, the bundled pair's tokenizer.

    python packaging/bench/random_model.py 1b.gguf

The shape is that of a common 1 B model (hidden 2,048, 16 layers, 32 heads, 8 KV heads, feed-forward 8,192) with the
bundled vocabulary of 4,096, so the output matrix costs less than a real one's. For timing passes, nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

from localspec import paths

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 2048, 16, 32, 8, 8192, 4096


def q8_0(generator: np.random.Generator, rows: int, columns: int, deviation: float) -> np.ndarray:
    """Random Q8_0 blocks: a float16 scale and 32 int8 each; returns uint8[rows, columns / 32 * 34]."""
    blocks = np.empty((rows * columns // 32, 34), dtype=np.uint8)
    scale = np.float16(deviation / 73.0)  # int8 uniform in -127..127 has deviation 73
    blocks[:, :2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    blocks[:, 2:] = generator.integers(-127, 128, (len(blocks), 32), dtype=np.int8).view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path) -> None:
    """Writes the file; about 1.0 GB."""
    source = gguf.GGUFReader(paths.bundled("tiny-target-q8_0.gguf"))
    writer = gguf.GGUFWriter(path, "llama")
    for field in source.fields.values():
        if field.name.startswith("tokenizer."):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    vocabulary = len(source.get_field("tokenizer.ggml.tokens").contents())
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    generator = np.random.default_rng(1)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }

    def add(name: str, rows: int, columns: int) -> None:
        data = q8_0(generator, rows, columns, columns**-0.5)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    add("token_embd.weight", vocabulary, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, dtype=np.float32))
        for name, (rows, columns) in shapes.items():
            add(f"blk.{layer}.{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: random_model.py FILE.gguf")
    write(Path(sys.argv[1]))
