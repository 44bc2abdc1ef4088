"""Random-weight heads of the architecture `dflash` for a target, in the layout of llama.cpp's own conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HEADS, KV_HEADS, SIZE, FEED_FORWARD = 4, 2, 64, 384
BLOCK, RANK, CANDIDATES, KERNEL, GROUP = 8, 16, 4, 2, 32
Weights = dict[str, npt.NDArray[Any]]


def weights(
    kind: str,
    hidden: int = 256,
    vocabulary: int = 4096,
    layers: int = 2,
    inputs: int = 3,
    seed: int = 0,
    guessed: Sequence[int] | None = None,
    tables: bool = False,
) -> Weights:
    """Tensors by name, float32 with the longest index last.

    Args:
        kind: "dflash", "dflash2" or "dspark".
        inputs: layers of the target that it reads.
        guessed: the tokens it can guess; None = all.
        tables: whether it brings embeddings and an output matrix of its own.
    """
    rng = np.random.default_rng(seed)

    def matrix(*shape: int, scale: float | None = None) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) * (scale or shape[-1] ** -0.5)).astype(np.float32)

    def norm(size: int) -> npt.NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    found: Weights = {
        "fc.weight": matrix(hidden, inputs * hidden),
        "enc.output_norm.weight": norm(hidden),
        "output_norm.weight": norm(hidden),
    }
    for layer in range(layers):
        parts = {
            "attn_norm": norm(hidden), "attn_q": matrix(HEADS * SIZE, hidden),
            "attn_k": matrix(KV_HEADS * SIZE, hidden), "attn_v": matrix(KV_HEADS * SIZE, hidden),
            "attn_output": matrix(hidden, HEADS * SIZE), "attn_q_norm": norm(SIZE), "attn_k_norm": norm(SIZE),
            "ffn_norm": norm(hidden), "ffn_gate": matrix(FEED_FORWARD, hidden),
            "ffn_up": matrix(FEED_FORWARD, hidden), "ffn_down": matrix(hidden, FEED_FORWARD),
        }  # fmt: skip
        found |= {f"blk.{layer}.{name}.weight": part for name, part in parts.items()}
        for part in ("attn", "ffn") if kind == "dflash2" else ():
            found[f"blk.{layer}.{part}_conv_base"] = matrix(2, KERNEL, hidden, scale=0.3)
            found[f"blk.{layer}.{part}_conv_proj.weight"] = matrix(2 * KERNEL * (hidden // GROUP), hidden, scale=0.02)
    many = vocabulary if guessed is None else len(guessed)
    if guessed is not None:
        found["d2t"] = np.array(guessed, dtype=np.int64)
    if tables:
        found["token_embd.weight"] = matrix(vocabulary, hidden, scale=1.0)
    if tables or guessed is not None:
        found["output.weight"] = matrix(many, hidden)
    if kind == "dspark":
        found |= {"markov_w1.weight": matrix(vocabulary, RANK, scale=1.0), "markov_w2.weight": matrix(many, RANK)}
        found |= {"conf_proj.weight": matrix(1, hidden + RANK), "conf_proj.bias": np.array([0.3], dtype=np.float32)}
    if kind == "dflash2":
        found |= {f"selector_{name}.weight": matrix(vocabulary, RANK) for name in ("predecessor", "successor")}
        found["selector_hidden.weight"] = matrix(RANK, hidden)
    return found


def facts(kind: str, layers: int = 2, hidden: int = 256, inputs: Sequence[int] = (1, 3, 5)) -> dict[str, Any]:
    """Metadata by key without "dflash."."""
    found: dict[str, Any] = {
        "context_length": 2048, "embedding_length": hidden, "block_count": layers, "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": SIZE,
        "attention.value_length": SIZE, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
        "rope.dimension_count": SIZE, "block_size": BLOCK, "target_layers": list(inputs),
    }  # fmt: skip
    if kind == "dspark":
        found |= {"sample_from_anchor": True, "has_confidence_head": True}
    if kind == "dflash2":
        found |= {
            "conv_kernel_size": KERNEL, "conv_group_size": GROUP, "selector_rank": RANK, "selector_top_k": CANDIDATES,
        }  # fmt: skip
    return found


def write(
    out: Path,
    target: Path,
    metadata: Mapping[str, Any],
    tensors: Weights,
    architecture: str = "dflash",
    mask: int | None = 16,
) -> Path:
    """Writes a file with the target's tokenizer.

    Args:
        metadata: see `facts`; None as a value leaves a key out.
        mask: the mask token; None = the file does not say.
    """
    import gguf

    writer, reader = gguf.GGUFWriter(out, architecture), gguf.GGUFReader(target)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        elif value is not None:
            kind = {bool: "bool", int: "uint32", float: "float32"}[type(value)]
            getattr(writer, f"add_{kind}")(f"{architecture}.{key}", value)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer.") and name not in ("tokenizer.chat_template", "tokenizer.ggml.mask_token_id"):
            writer.add_key_value(
                name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
            )
    if mask is not None:
        writer.add_uint32("tokenizer.ggml.mask_token_id", mask)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor, raw_dtype=gguf.GGMLQuantizationType.I64 if tensor.dtype == np.int64 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def head(out: Path, target: Path, kind: str, **changes: Any) -> tuple[Path, Weights]:
    """A file of one kind for the bundled target, and its weights; `changes`: of `weights`."""
    found = weights(kind, **changes)
    return write(out, target, facts(kind, changes.get("layers", 2)), found), found
