"""Write a checkpoint as GGUF: F16 through the `gguf` package, then Q8_0 by llama.cpp's quantiser."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chat
import gguf
import llama_cpp
import numpy as np
import tokenizer as tokens
import torch
from eagle3_head import HeadShape
from model import LAYER_TENSORS, Llama, Shape

SOURCES = (
    ("GSM8K (train)", "https://github.com/openai/grade-school-math", "MIT, Cobbe et al. 2021"),
    ("GPTeacher Codegen", "https://github.com/teknium1/GPTeacher", "MIT"),
    ("GPTeacher Roleplay", "https://github.com/teknium1/GPTeacher", "MIT"),
    ("GPTeacher Toolformer", "https://github.com/teknium1/GPTeacher", "MIT"),
    ("generated tasks", "", "MIT"),  # by this recipe
)


def credit(writer: gguf.GGUFWriter, name: str, description: str) -> None:
    """Name, author, licence and description."""
    writer.add_name(name)
    writer.add_author("localspec")
    writer.add_license("mit")
    writer.add_description(description)


def credit_sources(writer: gguf.GGUFWriter, places: bool = False) -> None:
    """The texts it learned from; `places`: their addresses, too."""
    writer.add_dataset_count(len(SOURCES))
    for index, (title, place, licence) in enumerate(SOURCES):
        writer.add_dataset_name(index, title)
        writer.add_dataset_description(index, f"licence: {licence}")
        if places and place:
            writer.add_dataset_repo_url(index, place)


def add_sizes(writer: gguf.GGUFWriter, shape: Shape | HeadShape, blocks: int, nextn: int = 0) -> None:
    """Context, width and depth; `nextn`: of the blocks, those that predict further tokens."""
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(blocks)
    if nextn:
        writer.add_nextn_predict_layers(nextn)
    writer.add_feed_forward_length(shape.feed_forward)


def add_attention(writer: gguf.GGUFWriter, shape: Shape | HeadShape, lengths: bool = False) -> None:
    """Heads, norms and rotary positions; `lengths`: how wide a head is, too, where that need not be hidden / heads."""
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    if lengths:
        writer.add_key_length(shape.head_size)
        writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_size)


def add_weight(writer: gguf.GGUFWriter, name: str, weight: torch.Tensor) -> None:
    """Matrices in F16, norms in F32."""
    array = weight.detach().float().numpy()
    writer.add_tensor(f"{name}.weight", array.astype(np.float16) if array.ndim == 2 else array)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """From rotary pairs (i, i + half) to llama.cpp's (2i, 2i + 1)."""
    rows, columns = weight.shape
    paired: np.ndarray[Any, Any] = (
        weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )
    return paired


def write_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Vocabulary, merges, special ids and the chat template."""
    data = json.loads(path.read_text(encoding="utf-8"))["model"]
    ordered = sorted(data["vocab"], key=data["vocab"].__getitem__)
    if ordered[: len(tokens.SPECIALS)] != list(tokens.SPECIALS):
        raise ValueError("the tokenizer's special tokens are not the ones of this recipe")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokens.PRE_TOKENIZER)
    writer.add_token_list(ordered)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if index < len(tokens.SPECIALS) else normal for index in range(len(ordered))])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in data["merges"]])
    writer.add_bos_token_id(tokens.BOS)
    writer.add_eos_token_id(tokens.END)
    writer.add_eot_token_id(tokens.END)
    writer.add_pad_token_id(tokens.PAD)
    writer.add_mask_token_id(tokens.SPECIALS.index("<|mask|>"))
    for key, name in (("prefix", "fim_pre"), ("suffix", "fim_suf"), ("middle", "fim_mid")):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", tokens.SPECIALS.index(f"<|fim_{key}|>"))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(chat.TEMPLATE)


def write_f16(checkpoint: Path, tokenizer: Path, out: Path, name: str, facts: Mapping[str, str] | None = None) -> Shape:
    """The checkpoint as an F16 GGUF (norms stay F32), with more `facts` in its metadata."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    shape = Shape(**state["shape"])
    model = Llama(shape)
    model.load_state_dict(state["model"])
    writer = gguf.GGUFWriter(str(out), "llama")
    credit(writer, name, "A tiny chat model that ships with localspec, trained by packaging/tiny-pair.")
    credit_sources(writer, places=True)
    writer.add_languages(["en"])
    add_sizes(writer, shape, shape.layers)
    add_attention(writer, shape)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    write_tokenizer(writer, tokenizer)
    for key, value in (facts or {}).items():
        writer.add_string(key, value)
    add_weight(writer, "token_embd", model.embedding)
    add_weight(writer, "output_norm", model.norm.weight)
    weights = dict(model.named_parameters())
    for layer in range(shape.layers):
        for ours, theirs in LAYER_TENSORS.items():
            weight = weights[f"blocks.{layer}.{ours}.weight"]
            if ours in ("q", "k"):
                heads = shape.heads if ours == "q" else shape.kv_heads
                weight = torch.nn.Parameter(torch.from_numpy(interleave(weight.detach().numpy(), heads).copy()))
            add_weight(writer, f"blk.{layer}.{theirs}", weight)
    finish(writer)
    return shape


def quantise(source: Path, out: Path, kind: str = "Q8_0", pure: bool = False) -> None:
    """Quantise with llama.cpp, into place at once; `pure`: embeddings, which serve as output too, like the rest."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread, params.pure = 2, pure
    params.allow_requantize = True
    half = out.with_suffix(".half")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(half).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp could not quantise {source} to {kind}")
    os.replace(half, out)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of an export in F16 and Q8_0."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("checkpoint", type=Path)
    options.add_argument("tokenizer", type=Path)
    options.add_argument("out", type=Path, help="the Q8_0 file; the F16 file is written beside it")
    return options


def f16_beside(out: Path) -> Path:
    """Where the F16 file goes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.with_name(out.stem.replace("-q8_0", "") + "-f16.gguf")


def main() -> None:
    """Checkpoint in, GGUF out."""
    options = parser(__doc__)
    options.add_argument("--name", required=True, help="general.name in the file")
    args = options.parse_args()
    f16 = f16_beside(args.out)
    write_f16(args.checkpoint, args.tokenizer, f16, args.name)
    quantise(f16, args.out)


if __name__ == "__main__":
    main()
