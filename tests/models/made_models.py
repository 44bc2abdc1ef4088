"""Writes model files of chosen shapes, weights all zero and not stored (holes), for checks of memory plans."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.llama.tiny_gguf import TINY_METADATA, string, value

F32, F16 = 0, 1
Tensors = list[tuple[str, Sequence[int]]]


@dataclass(frozen=True)
class Made:
    """A model to write."""

    architecture: str = "llama"
    embedding: int = 256
    feed_forward: int = 1024
    heads: int = 8
    kv_heads: int = 2
    head: int = 32
    layers: int = 3
    vocabulary: int = 4096
    context: int = 8192
    tied: bool = True
    experts: int = 0
    fused: bool = False
    """One matrix for query, key and value, and one for gate and up (Phi-3)."""
    more_layer: Tensors = field(default_factory=list)
    """Further tensors of every layer, without `blk.N.`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further values; keys without a dot at the front get the architecture's name."""


def metadata_of(made: Made) -> dict[str, Any]:
    own = {
        "context_length": made.context,
        "embedding_length": made.embedding,
        "block_count": made.layers,
        "feed_forward_length": made.feed_forward,
        "attention.head_count": made.heads,
        "attention.head_count_kv": made.kv_heads,
        "attention.key_length": made.head,
        "attention.value_length": made.head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": made.head,
        **({"expert_count": made.experts, "expert_used_count": 2} if made.experts else {}),
        **made.metadata,
    }
    tokenizer = {key: TINY_METADATA[key] for key in TINY_METADATA if key.startswith("tokenizer.")}
    more = made.vocabulary - 260
    tokenizer["tokenizer.ggml.tokens"] = [*tokenizer["tokenizer.ggml.tokens"], *(f"t{i}" for i in range(more))]
    tokenizer["tokenizer.ggml.token_type"] = [*tokenizer["tokenizer.ggml.token_type"], *[1] * more]
    tokenizer["tokenizer.ggml.scores"] = [0.0] * made.vocabulary
    named = {f"{made.architecture}.{key}": content for key, content in own.items()}
    return {"general.architecture": made.architecture, "general.name": "made", **named, **tokenizer}


def tensors_of(made: Made) -> Tensors:
    width, query, kv, up = made.embedding, made.heads * made.head, made.kv_heads * made.head, made.feed_forward
    found: Tensors = [("token_embd.weight", (width, made.vocabulary)), ("output_norm.weight", (width,))]
    if not made.tied:
        found.append(("output.weight", (width, made.vocabulary)))
    layer: Tensors = [("attn_norm.weight", (width,))]
    if made.fused:
        layer.append(("attn_qkv.weight", (width, query + 2 * kv)))
    else:
        layer += [(f"attn_{name}.weight", (width, size)) for name, size in (("q", query), ("k", kv), ("v", kv))]
    layer += [("attn_output.weight", (query, width)), ("ffn_norm.weight", (width,))]
    if made.experts:
        layer.append(("ffn_gate_inp.weight", (width, made.experts)))
        layer += [(f"ffn_{name}_exps.weight", (width, up, made.experts)) for name in ("gate", "up")]
        layer.append(("ffn_down_exps.weight", (up, width, made.experts)))
    elif made.fused:
        layer += [("ffn_up.weight", (width, 2 * up)), ("ffn_down.weight", (up, width))]
    else:
        layer += [("ffn_gate.weight", (width, up)), ("ffn_up.weight", (width, up)), ("ffn_down.weight", (up, width))]
    layer += made.more_layer
    return found + [(f"blk.{index}.{name}", shape) for index in range(made.layers) for name, shape in layer]


def write_model(path: Path, made: Made) -> Path:
    """The file; its weights are holes that take no room on disk."""
    metadata, tensors = metadata_of(made), tensors_of(made)
    out = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, content in metadata.items():
        out += string(key)
        if key.endswith(".scores"):
            out += struct.pack("<IIQ", 9, 6, len(content)) + struct.pack(f"<{len(content)}f", *content)
        else:
            out += value(content)
    offset = 0
    for name, shape in tensors:
        kind = F32 if len(shape) == 1 else F16
        size = 4 if kind == F32 else 2
        for width in shape:
            size *= width
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += size + -size % 32
    with path.open("wb") as file:
        file.write(out + b"\0" * (-len(out) % 32))
        file.truncate(file.tell() + offset)
    return path
