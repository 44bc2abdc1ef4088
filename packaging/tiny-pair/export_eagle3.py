"""Write an EAGLE-3 head as GGUF, as llama.cpp's own conversion names everything, in Q8_0 (norms F32)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import export
import gguf
import numpy as np
import torch
from eagle3_head import Eagle3, HeadShape
from heads import sha256

TENSORS = {
    "fc": "fc", "norm": "output_norm", "embedding": "output", "token_norm": "blk.0.attn_norm",
    "state_norm": "blk.0.attn_norm_2", "q": "blk.0.attn_q", "k": "blk.0.attn_k", "v": "blk.0.attn_v",
    "o": "blk.0.attn_output", "feed_forward_norm": "blk.0.ffn_norm", "gate": "blk.0.ffn_gate", "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
}  # fmt: skip
"""Our names and GGUF's."""


def copy_tokenizer(writer: gguf.GGUFWriter, target: gguf.GGUFReader) -> int:
    """The target's vocabulary, as the conversion puts it into a head; returns its size."""
    for key in ("model", "pre"):
        field = target.fields[f"tokenizer.ggml.{key}"]
        writer.add_string(field.name, field.contents())
    tokens = target.fields["tokenizer.ggml.tokens"].contents()
    writer.add_token_list(tokens)
    writer.add_token_types(target.fields["tokenizer.ggml.token_type"].contents())
    writer.add_token_merges(target.fields["tokenizer.ggml.merges"].contents())
    for name, field in target.fields.items():
        if name.startswith("tokenizer.ggml.") and name.endswith("_token_id"):
            writer.add_uint32(name, field.contents())
        elif name.startswith("tokenizer.ggml.add_"):
            writer.add_bool(name, field.contents())
    return len(tokens)


def describe(writer: gguf.GGUFWriter, shape: HeadShape, target: Path, lengths: bool = False) -> None:
    """Sizes, tokenizer, and what it reads of its target; `lengths`: see `export.add_attention`."""
    writer.add_string("localspec.target_sha256", sha256(target))
    export.add_sizes(writer, shape, 1)
    export.add_attention(writer, shape, lengths)
    writer.add_array("eagle3.target_layers", list(shape.layers))
    writer.add_uint32("eagle3.target_hidden_size", shape.target_hidden)
    writer.add_bool("eagle3.norm_before_residual", False)
    writer.add_bool("eagle3.norm_before_fc", False)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_vocab_size(copy_tokenizer(writer, gguf.GGUFReader(target)))


def add_q8_0(writer: gguf.GGUFWriter, title: str, weight: np.ndarray[Any, Any]) -> None:
    """Matrices in Q8_0, norms in F32."""
    weight = np.ascontiguousarray(weight, dtype=np.float32)
    if weight.ndim == 1:
        writer.add_tensor(title, weight)
    else:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(title, gguf.quants.quantize(weight, kind), raw_dtype=kind)


def add_vocabulary(writer: gguf.GGUFWriter, kept: np.ndarray[Any, Any]) -> None:
    """The target's tokens that the head guesses."""
    writer.add_tensor("d2t", kept.astype(np.int64), raw_dtype=gguf.GGMLQuantizationType.I64)


def write(checkpoint: Path, target: Path, out: Path) -> None:
    """The checkpoint as a GGUF for that target."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    shape = HeadShape(**state["shape"])
    head = Eagle3(shape)
    head.load_state_dict(state["model"])
    writer = gguf.GGUFWriter(str(out), "eagle3")
    export.credit(
        writer,
        "localspec tiny target EAGLE-3",
        "An EAGLE-3 head for localspec's tiny target, trained by packaging/tiny-pair.",
    )
    export.credit_sources(writer)
    describe(writer, shape, target, lengths=True)
    weights = {name.removesuffix(".weight"): weight.detach().numpy() for name, weight in head.named_parameters()}
    for ours, theirs in TENSORS.items():
        weight = weights[ours]
        if ours in ("q", "k"):
            weight = export.interleave(weight, shape.heads if ours == "q" else shape.kv_heads)
        add_q8_0(writer, f"{theirs}.weight", weight)
    add_vocabulary(writer, state["kept"].numpy())
    export.finish(writer)


def main() -> None:
    """Checkpoint in, GGUF out."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkpoint", type=Path, help="eagle3.pt")
    options.add_argument("target", type=Path, help="the target's GGUF, byte for byte the one it was trained on")
    options.add_argument("out", type=Path)
    args = options.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write(args.checkpoint, args.target, args.out)


if __name__ == "__main__":
    main()
