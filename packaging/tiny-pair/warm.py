"""The way back from GGUF: a shipped model as weights and tokenizer, to train on from there.

Q8_0 keeps about eight bits of every weight, and the state of the optimiser is gone; the first minutes of
training make up for both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizer as tokens
import torch
from model import LAYER_TENSORS, TARGET, Llama
from tokenizers import Tokenizer


def separate(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """From llama.cpp's rotary pairs (2i, 2i + 1) to (i, i + half): undoes `export.interleave`."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_weights(path: Path, model: Llama) -> None:
    """Fill the model with the weights of a GGUF that this recipe wrote."""
    found = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors
    }
    shape = model.shape
    state = {"embedding": found["token_embd.weight"], "norm.weight": found["output_norm.weight"]}
    for layer in range(shape.layers):
        for ours, theirs in LAYER_TENSORS.items():
            weight = found[f"blk.{layer}.{theirs}.weight"]
            if ours in ("q", "k"):
                weight = separate(weight, shape.heads if ours == "q" else shape.kv_heads)
            state[f"blocks.{layer}.{ours}.weight"] = weight
    model.load_state_dict({name: torch.from_numpy(np.array(weight, np.float32)) for name, weight in state.items()})


def frozen(path: Path) -> Llama:
    """The target in a GGUF that this recipe wrote, to learn from."""
    target = Llama(TARGET)
    read_weights(path, target)
    return target.requires_grad_(False)


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer inside a GGUF that this recipe wrote."""
    fields = gguf.GGUFReader(path).fields
    entries = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    return tokens.assemble({entry: index for index, entry in enumerate(entries)}, merges)
