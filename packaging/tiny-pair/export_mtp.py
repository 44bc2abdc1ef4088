"""Write a checkpoint of `train_mtp.py` as GGUF, in the architecture `hy_v3` with dense layers: F16, then Q8_0."""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
import torch
from export import SOURCES, quantise, write_tokenizer
from mtp_model import Mtp, Shape

BLOCK = {
    "attention_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    "feed_forward_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
"""Our names of a layer's tensors and GGUF's."""
NEXTN = {
    "join": "nextn.eh_proj", "token_norm": "nextn.enorm", "state_norm": "nextn.hnorm", "norm": "nextn.shared_head_norm"
}  # fmt: skip


def read(checkpoint: Path) -> Mtp:
    """The model of a checkpoint."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model = Mtp(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model


def tensors(model: Mtp) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """GGUF's name -> weights; llama.cpp turns the same pairs of rows as we do, so nothing is reordered."""
    found = {"token_embd": model.embedding, "output_norm": model.norm.weight}
    blocks = [*model.blocks, model.nextn.block]
    for layer, block in enumerate(blocks):
        found |= {f"blk.{layer}.{theirs}": block.get_submodule(ours).weight for ours, theirs in BLOCK.items()}
    last = len(blocks) - 1
    found |= {f"blk.{last}.{theirs}": model.nextn.get_submodule(ours).weight for ours, theirs in NEXTN.items()}
    return {f"{name}.weight": weight.detach().float().numpy() for name, weight in found.items()}


def write_f16(model: Mtp, tokenizer: Path, out: Path, name: str, target: str) -> None:
    """The model as an F16 GGUF (norms stay F32).

    Args:
        target: sha256 of the file whose probabilities it was trained on.
    """
    shape = model.shape
    writer = gguf.GGUFWriter(str(out), "hy_v3")
    writer.add_name(name)
    writer.add_author("localspec")
    writer.add_license("mit")
    writer.add_description("A tiny chat model with a multi-token-prediction layer, for localspec's tests.")
    writer.add_string("localspec.distilled_from", target)
    writer.add_dataset_count(len(SOURCES))
    for index, (title, _, licence) in enumerate(SOURCES):
        writer.add_dataset_name(index, title)
        writer.add_dataset_description(index, f"licence: {licence}")
    writer.add_languages(["en"])
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers + shape.nextn)
    writer.add_nextn_predict_layers(shape.nextn)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_expert_feed_forward_length(shape.feed_forward)  # llama.cpp asks for it; there are no experts
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    write_tokenizer(writer, tokenizer)
    for title, weight in tensors(model).items():
        writer.add_tensor(title, weight.astype(np.float16) if weight.ndim == 2 else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Checkpoint in, GGUF out."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checkpoint", type=Path)
    options.add_argument("tokenizer", type=Path)
    options.add_argument("out", type=Path, help="the Q8_0 file; the F16 file is written beside it")
    options.add_argument("--target", required=True, help="sha256 of the target's file")
    args = options.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    f16 = args.out.with_name(args.out.stem.replace("-q8_0", "") + "-f16.gguf")
    write_f16(read(args.checkpoint), args.tokenizer, f16, "localspec tiny MTP", args.target)
    quantise(f16, args.out)


if __name__ == "__main__":
    main()
