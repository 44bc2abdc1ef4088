"""Write a DFlash or DSpark head as GGUF, as llama.cpp's own conversion names everything, in Q8_0 (norms F32)."""

from __future__ import annotations

import argparse
from pathlib import Path

import export
import gguf
import torch
from dflash_head import BlockShape, DFlash
from export_eagle3 import add_q8_0, copy_tokenizer
from heads import sha256
from model import LAYER_TENSORS

TENSORS = {
    "fc.weight": "fc.weight", "state_norm.weight": "enc.output_norm.weight", "norm.weight": "output_norm.weight",
    "markov_before": "markov_w1.weight", "markov_after": "markov_w2.weight",
    "confidence.weight": "conf_proj.weight", "confidence.bias": "conf_proj.bias",
}  # fmt: skip
"""Our names and GGUF's; those of the layers are in LAYERS."""
LAYERS = {**LAYER_TENSORS, "q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}


def title(name: str) -> str:
    """GGUF's name of a tensor."""
    if name in TENSORS:
        return TENSORS[name]
    _, layer, ours, kind = name.split(".")
    return f"blk.{layer}.{LAYERS[ours]}.{kind}"


def describe(writer: gguf.GGUFWriter, shape: BlockShape, target: Path) -> None:
    """Sizes, tokenizer, and what it reads of its target."""
    writer.add_string("localspec.target_sha256", sha256(target))
    export.add_sizes(writer, shape, shape.blocks)
    export.add_attention(writer, shape, lengths=True)
    writer.add_uint32("dflash.block_size", shape.block)
    writer.add_array("dflash.target_layers", list(shape.layers))
    writer.add_bool("dflash.attention.causal", False)
    if shape.rank:
        writer.add_bool("dflash.sample_from_anchor", True)
        writer.add_bool("dflash.has_confidence_head", True)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_vocab_size(copy_tokenizer(writer, gguf.GGUFReader(target)))


def write(checkpoint: Path, target: Path, out: Path) -> None:
    """The checkpoint as a GGUF for that target."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    shape = BlockShape(**state["shape"])
    head = DFlash(shape)
    head.load_state_dict(state["model"])
    kind = "DSpark" if shape.rank else "DFlash"
    writer = gguf.GGUFWriter(str(out), "dflash")
    export.credit(
        writer,
        f"localspec tiny target {kind}",
        f"A {kind} head for localspec's tiny target, trained by packaging/tiny-pair.",
    )
    export.credit_sources(writer)
    describe(writer, shape, target)
    for name, weight in head.named_parameters():
        add_q8_0(writer, title(name), weight.detach().numpy())
    export.finish(writer)


def main() -> None:
    """Checkpoint in, GGUF out."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkpoint", type=Path, help="dspark.pt or dflash.pt")
    options.add_argument("target", type=Path, help="the target's GGUF, byte for byte the one it was trained on")
    options.add_argument("out", type=Path)
    args = options.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write(args.checkpoint, args.target, args.out)


if __name__ == "__main__":
    main()
