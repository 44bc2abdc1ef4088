"""Random-weight assistants for a random-weight Gemma 4, in the layout of llama.cpp's own conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.drafters import dflash_files
from tests.drafters.dflash_files import Weights

HIDDEN, TARGET_HIDDEN, HEADS, FEED_FORWARD = 64, 256, 4, 128
SIZES = {True: 64, False: 128}
"""Numbers of a key: in a layer with a sliding window, and in one without."""


def facts(layers: int = 2, windows: tuple[bool, ...] | None = None) -> dict[str, Any]:
    """Metadata by key without "gemma4-assistant."."""
    return {
        "context_length": 2048, "embedding_length": HIDDEN, "embedding_length_out": TARGET_HIDDEN,
        "block_count": layers, "nextn_predict_layers": layers, "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": SIZES[False], "attention.value_length": SIZES[False],
        "attention.key_length_swa": SIZES[True], "attention.value_length_swa": SIZES[True],
        "rope.dimension_count": SIZES[False], "rope.dimension_count_swa": SIZES[True], "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4, "attention.sliding_window": 64, "attention.shared_kv_layers": layers,
        "attention.sliding_window_pattern": list(windows or (True,) * (layers - 1) + (False,)),
    }  # fmt: skip


def weights(metadata: Mapping[str, Any], vocabulary: int = 4096, seed: int = 0) -> Weights:
    """Tensors by name."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> Any:
        return (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)

    def norm(size: int) -> Any:
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    found: Weights = {
        "token_embd.weight": matrix(vocabulary, HIDDEN) * np.float32(4),
        "output_norm.weight": norm(HIDDEN),
        "nextn.pre_projection.weight": matrix(HIDDEN, 2 * TARGET_HIDDEN),
        "nextn.post_projection.weight": matrix(TARGET_HIDDEN, HIDDEN),
    }
    for layer, window in enumerate(metadata["attention.sliding_window_pattern"]):
        size = SIZES[window]
        parts = {
            "attn_norm": norm(HIDDEN), "attn_q": matrix(HEADS * size, HIDDEN), "attn_q_norm": norm(size),
            "attn_output": matrix(HIDDEN, HEADS * size), "post_attention_norm": norm(HIDDEN),
            "ffn_norm": norm(HIDDEN), "ffn_gate": matrix(FEED_FORWARD, HIDDEN), "ffn_up": matrix(FEED_FORWARD, HIDDEN),
            "ffn_down": matrix(HIDDEN, FEED_FORWARD), "post_ffw_norm": norm(HIDDEN),
            "layer_output_scale": np.array([0.7], dtype=np.float32),
        }  # fmt: skip
        found |= {f"blk.{layer}.{name}.weight": part for name, part in parts.items()}
    found["rope_freqs.weight"] = (1 + rng.random(SIZES[False] // 2)).astype(np.float32)
    return found


def assistant(
    out: Path, target: Path, layers: int = 2, change: Mapping[str, Any] | None = None, without: str = ""
) -> tuple[Path, Weights]:
    """A file for a target, and its weights; `change`: other metadata than `facts`; `without`: a tensor to leave out."""
    metadata = facts(layers) | dict(change or {})
    found = weights(facts(layers))
    kept = {name: tensor for name, tensor in found.items() if name != without}
    return dflash_files.write(out, target, metadata, kept, architecture="gemma4-assistant", mask=None), found
