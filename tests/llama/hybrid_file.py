"""A random model whose layers are linear attention and full attention in turn, with an MTP layer (`qwen35`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.drafters.mtp_files import shipped

HIDDEN, HEADS, KV_HEADS, SIZE, FEED_FORWARD, LAYERS = 64, 2, 1, 64, 128, 2
STATE, VALUE_HEADS, KEY_HEADS, KERNEL = 32, 2, 1, 4
"""Of linear attention: rows of a head's state, heads, and how many tokens its convolution sees."""


def write(out: Path, seed: int = 0) -> Path:
    """A file with the tokenizer of the shipped MTP model and random weights in Q8_0."""
    import gguf

    random, writer = np.random.default_rng(seed), gguf.GGUFWriter(out, "qwen35")
    metadata, _ = shipped()
    for name, value, kind, inner in metadata:
        if name.startswith("tokenizer."):
            writer.add_key_value(name, value, kind, inner)
    for key, number in {
        "block_count": LAYERS + 1, "nextn_predict_layers": 1, "full_attention_interval": 2, "context_length": 2048,
        "embedding_length": HIDDEN, "feed_forward_length": FEED_FORWARD, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": SIZE, "attention.value_length": SIZE,
        "rope.dimension_count": SIZE, "ssm.conv_kernel": KERNEL, "ssm.inner_size": STATE * VALUE_HEADS,
        "ssm.state_size": STATE, "ssm.time_step_rank": VALUE_HEADS, "ssm.group_count": KEY_HEADS,
    }.items():  # fmt: skip
        writer.add_uint32(f"qwen35.{key}", number)
    writer.add_float32("qwen35.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])

    def matrix(name: str, rows: int, columns: int) -> None:
        weights = (random.normal(size=(rows, columns)) * columns**-0.5).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)

    def vector(name: str, low: float, high: float, *shape: int) -> None:
        writer.add_tensor(name, random.uniform(low, high, shape).astype(np.float32))

    matrix("token_embd", 4096, HIDDEN)
    vector("output_norm.weight", 2.0, 4.0, HIDDEN)
    for layer in range(LAYERS + 1):
        start = f"blk.{layer}."
        for name in ("attn_norm", "post_attention_norm"):
            vector(f"{start}{name}.weight", 0.7, 1.3, HIDDEN)
        matrix(f"{start}ffn_gate", FEED_FORWARD, HIDDEN)
        matrix(f"{start}ffn_up", FEED_FORWARD, HIDDEN)
        matrix(f"{start}ffn_down", HIDDEN, FEED_FORWARD)
        if layer % 2 == 0 and layer < LAYERS:
            channels = STATE * (2 * KEY_HEADS + VALUE_HEADS)
            matrix(f"{start}attn_qkv", channels, HIDDEN)
            matrix(f"{start}attn_gate", STATE * VALUE_HEADS, HIDDEN)
            matrix(f"{start}ssm_beta", VALUE_HEADS, HIDDEN)
            matrix(f"{start}ssm_alpha", VALUE_HEADS, HIDDEN)
            matrix(f"{start}ssm_out", HIDDEN, STATE * VALUE_HEADS)
            vector(f"{start}ssm_conv1d.weight", -0.8, 0.8, channels, KERNEL)
            vector(f"{start}ssm_dt.bias", -1.0, 1.0, VALUE_HEADS)
            vector(f"{start}ssm_a", -1.0, -0.1, VALUE_HEADS)
            vector(f"{start}ssm_norm.weight", 0.7, 1.3, STATE)
            continue
        matrix(f"{start}attn_q", 2 * HEADS * SIZE, HIDDEN)
        matrix(f"{start}attn_k", KV_HEADS * SIZE, HIDDEN)
        matrix(f"{start}attn_v", KV_HEADS * SIZE, HIDDEN)
        matrix(f"{start}attn_output", HIDDEN, HEADS * SIZE)
        for name in ("attn_q_norm", "attn_k_norm"):
            vector(f"{start}{name}.weight", 0.7, 1.3, SIZE)
    matrix(f"blk.{LAYERS}.nextn.eh_proj", HIDDEN, 2 * HIDDEN)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        vector(f"blk.{LAYERS}.nextn.{name}.weight", 0.7, 1.3, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
