"""Writes small GGUF files, byte by byte, so that tests can damage them in exact places."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TYPE_F32 = 0


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(content: Any) -> bytes:
    """A typed metadata value."""
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<II", 4, content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    if isinstance(content, str):
        return struct.pack("<I", 8) + string(content)
    inner = 8 if content and isinstance(content[0], str) else 5
    items = b"".join(string(item) if inner == 8 else struct.pack("<i", item) for item in content)
    return struct.pack("<IIQ", 9, inner, len(content)) + items


TINY_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"],
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1],
    "tokenizer.ggml.scores": [0] * 260,
}


def tiny_tensors(n_vocab: int = 260) -> list[tuple[str, Sequence[int]]]:
    """Names and shapes of a one-layer llama."""
    return [
        ("token_embd.weight", (32, n_vocab)),
        ("output_norm.weight", (32,)),
        ("blk.0.attn_norm.weight", (32,)),
        ("blk.0.attn_q.weight", (32, 32)),
        ("blk.0.attn_k.weight", (32, 32)),
        ("blk.0.attn_v.weight", (32, 32)),
        ("blk.0.attn_output.weight", (32, 32)),
        ("blk.0.ffn_norm.weight", (32,)),
        ("blk.0.ffn_gate.weight", (32, 64)),
        ("blk.0.ffn_up.weight", (32, 64)),
        ("blk.0.ffn_down.weight", (64, 32)),
    ]


MAMBA_METADATA: dict[str, Any] = {
    **{key: value for key, value in TINY_METADATA.items() if not key.startswith("llama.")},
    "general.architecture": "mamba",
    "mamba.context_length": 128,
    "mamba.embedding_length": 32,
    "mamba.block_count": 1,
    "mamba.feed_forward_length": 0,
    "mamba.attention.head_count": 0,
    "mamba.attention.layer_norm_rms_epsilon": 1e-5,
    "mamba.ssm.conv_kernel": 4,
    "mamba.ssm.inner_size": 64,
    "mamba.ssm.state_size": 16,
    "mamba.ssm.time_step_rank": 2,
}
"""A model whose state cannot be trimmed."""

MAMBA_TENSORS: list[tuple[str, Sequence[int]]] = [
    ("token_embd.weight", (32, 260)),
    ("output_norm.weight", (32,)),
    ("blk.0.attn_norm.weight", (32,)),
    ("blk.0.ssm_in.weight", (32, 128)),
    ("blk.0.ssm_conv1d.weight", (4, 64)),
    ("blk.0.ssm_conv1d.bias", (64,)),
    ("blk.0.ssm_x.weight", (64, 34)),
    ("blk.0.ssm_dt.weight", (2, 64)),
    ("blk.0.ssm_dt.bias", (64,)),
    ("blk.0.ssm_a", (16, 64)),
    ("blk.0.ssm_d", (64,)),
    ("blk.0.ssm_out.weight", (64, 32)),
]


def gguf_bytes(
    metadata: dict[str, Any] | None = None, tensors: Sequence[tuple[str, Sequence[int]]] | None = None, version: int = 3
) -> bytes:
    """A whole file; tensors are float32 with small random values, the same each time."""
    metadata = dict(TINY_METADATA) if metadata is None else metadata
    tensors = tiny_tensors() if tensors is None else tensors
    out = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    for key, content in metadata.items():
        if key == "tokenizer.ggml.scores":
            out += string(key) + struct.pack("<IIQ", 9, 6, len(content)) + struct.pack(f"<{len(content)}f", *content)
        else:
            out += string(key) + value(content)
    offset, data = 0, b""
    for name, shape in tensors:
        count = 1
        for size in shape:
            count *= size
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPE_F32, offset)
        small = random.Random(len(data))
        data += struct.pack(f"<{count}f", *(small.uniform(-0.2, 0.2) for _ in range(count)))
        data += b"\0" * (-len(data) % 32)
        offset = len(data)
    return out + b"\0" * (-len(out) % 32) + data


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
