"""Write a checkpoint of `train_mtp.py` as GGUF, in the architecture `hy_v3` with dense layers: F16, then Q8_0."""

from __future__ import annotations

from pathlib import Path

import export
import gguf
import torch
from mtp_model import Mtp, MtpShape

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
    model = Mtp(MtpShape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model


def tensors(model: Mtp) -> dict[str, torch.Tensor]:
    """GGUF's name without its end -> weights; llama.cpp turns the same pairs of rows as we do: nothing is reordered."""
    found: dict[str, torch.Tensor] = {"token_embd": model.embedding, "output_norm": model.norm.weight}
    blocks = [*model.blocks, model.nextn.block]
    for layer, block in enumerate(blocks):
        found |= {f"blk.{layer}.{theirs}": block.get_submodule(ours).weight for ours, theirs in BLOCK.items()}
    last = len(blocks) - 1
    return found | {f"blk.{last}.{theirs}": model.nextn.get_submodule(ours).weight for ours, theirs in NEXTN.items()}


def write_f16(model: Mtp, tokenizer: Path, out: Path, name: str, target: str) -> None:
    """The model as an F16 GGUF (norms stay F32).

    Args:
        target: sha256 of the file whose probabilities it was trained on.
    """
    shape = model.shape
    writer = gguf.GGUFWriter(str(out), "hy_v3")
    export.credit(writer, name, "A tiny chat model with a multi-token-prediction layer, for localspec's tests.")
    writer.add_string("localspec.distilled_from", target)
    export.credit_sources(writer)
    writer.add_languages(["en"])
    export.add_sizes(writer, shape, shape.layers + shape.nextn, shape.nextn)
    writer.add_expert_feed_forward_length(shape.feed_forward)  # llama.cpp asks for it; there are no experts
    export.add_attention(writer, shape, lengths=True)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    export.write_tokenizer(writer, tokenizer)
    for title, weight in tensors(model).items():
        export.add_weight(writer, title, weight)
    export.finish(writer)


def main() -> None:
    """Checkpoint in, GGUF out."""
    options = export.parser(__doc__)
    options.add_argument("--target", required=True, help="sha256 of the target's file")
    args = options.parse_args()
    f16 = export.f16_beside(args.out)
    write_f16(read(args.checkpoint), args.tokenizer, f16, "localspec tiny MTP", args.target)
    export.quantise(f16, args.out)


if __name__ == "__main__":
    main()
