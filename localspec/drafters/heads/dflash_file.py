"""Reads the header of a head of llama.cpp's architecture `dflash`, and checks that the head fits a target.

Read from headers alone. llama.cpp would end the process over most of what is refused here (src/models/dflash.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from localspec.drafters.heads.block_rows import Scaling
from localspec.drafters.heads.dflash_context import BlockShape
from localspec.drafters.heads.head_tokens import check_rows, guessed_ids
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header, Tensor
from localspec.llama.cache.states import SHOWS_LAYERS
from localspec.llama.model import check_text_model
from localspec.models.facts import pairing
from localspec.models.facts.checkpoint import is_checkpoint
from localspec.models.facts.heads import check_forgets, draft_kind, nextn_layers

KINDS = ("dflash", "dflash2", "dspark")
MOST_BLOCK_ROWS = 8
"""Most rows of a block: wider passes of the target cost much more on most GPUs and on CPUs (issue 48). A head that was
trained for longer blocks may guess worse in these, since its rows depend on the length of a block."""
_DEFAULT_BLOCK_ROWS = 16
"""Rows of a block if a DFlash file does not say: llama.cpp's default."""
_LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_k", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm", "ffn_gate", "ffn_up",
    "ffn_down",
)  # fmt: skip
"""Tensors of each layer, without which llama.cpp refuses the file."""
_SELECTOR_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclass(frozen=True, slots=True)
class DFlashFile:
    """One file that fits its target."""

    header: Header
    kind: str
    """One of `KINDS`."""
    layers: tuple[int, ...]
    """Layers of the target whose inputs the head reads, in the head's order."""
    shape: BlockShape
    scaling: Scaling
    """Scale and cap of the head's logits. llama.cpp applies them for DFlash2 only."""
    ids: npt.NDArray[np.int64] | None
    """int64[n], the tokens that the head can guess; None = all."""
    from_anchor: bool
    """Whether the row of the last token guesses, too (DSpark)."""
    candidates: int
    """Number of candidates in each row (DFlash2)."""


def read(path: Path, target: Header) -> DFlashFile:
    """Reads the header of a head and compares it with its target's.

    Args:
        path: a GGUF file of the architecture `dflash`.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: damaged, or without a tensor or a number that it needs.
        PairError: no such head, or made for another model; the message names the first fact that differs.
    """
    if is_checkpoint(path):
        raise ModelFileError(
            f"{path.name} is a DFlash or DSpark head as published for Python; localspec reads it as GGUF.",
            "Convert it with llama.cpp: convert_hf_to_gguf.py PATH --target-model-dir TARGET.",
        )
    header = check_text_model(path)
    kind = draft_kind(header)
    if kind.method not in KINDS:
        raise PairError(f"{path.name} is {kind.sentence}, not a DFlash or DSpark head.")
    check_forgets(target)
    pairing.check(target, header)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    layers = _layers(header, target)
    _check_attention(header)
    _check_tensors(header, tensors, kind.method)
    check_rows(header, tensors, target)
    ids = guessed_ids(header, tensors, target)
    stated = header.flag("dflash.sample_from_anchor")
    from_anchor = kind.method == "dspark" and stated is not False
    if kind.method == "dflash2":
        _check_selector(header)
    if kind.method == "dspark":
        _check_markov(header, tensors, ids)
    return DFlashFile(
        header,
        kind.method,
        layers,
        BlockShape(
            _rows(header, kind.method, from_anchor),
            _mask(header),
            causal=header.flag("dflash.attention.causal") is True,
            logits=kind.method != "dflash2",
        ),
        Scaling(header.real("logit_scale") or 1.0, header.real("final_logit_softcapping")),
        ids,
        from_anchor,
        header.number("selector_top_k"),
    )


def _layers(header: Header, target: Header) -> tuple[int, ...]:
    """The layers whose inputs the head reads, if this llama.cpp shows them."""
    layers = header.array("dflash.target_layers")
    if not layers or not all(isinstance(layer, int) and layer >= 0 for layer in layers):
        raise ModelFileError(f"{header.path.name} is corrupt: it names target layers {list(layers)[:8]}.")
    count = target.n_layers - nextn_layers(target)
    if max(layers) >= count:
        raise PairError(
            f"{header.path.name} cannot draft for {target.path.name}: number of layers is {count} in the target, and"
            f" the head reads layer {max(layers)}, counted from 0."
        )
    if target.architecture not in SHOWS_LAYERS:
        raise PairError(
            f"llama.cpp does not show what goes into layers of the architecture {target.architecture}, which"
            f" {header.path.name} reads."
        )
    return tuple(int(layer) for layer in layers)


def _rows(header: Header, kind: str, from_anchor: bool) -> int:
    """Rows of a block."""
    stated = header.metadata.get("dflash.block_size", None if kind != "dflash" else _DEFAULT_BLOCK_ROWS)
    least = 1 if from_anchor else 2
    if not isinstance(stated, int) or stated < least:
        said = "does not say how long its blocks are" if stated is None else f"has blocks of {stated} tokens"
        raise ModelFileError(f"{header.path.name} {said}; localspec needs dflash.block_size of at least {least}.")
    return min(stated, MOST_BLOCK_ROWS)


def _mask(header: Header) -> int:
    size, mask = header.count("tokenizer.ggml.tokens"), header.metadata.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int) or not 0 <= mask < size:
        said = "does not say which token is its mask" if mask is None else f"names {mask} as its mask token"
        raise ModelFileError(
            f"{header.path.name} {said}; its vocabulary has {size} tokens.",
            "Convert it again with a newer llama.cpp, which writes tokenizer.ggml.mask_token_id.",
        )
    return mask


def _check_attention(header: Header) -> None:
    """Numbers over which llama.cpp ends the process."""
    name = header.path.name
    if header.number("hyper_connection.count") > 0:
        raise PairError(f"{name} joins its layers by hyper-connections, which localspec cannot draft with yet.")
    if header.number("attention.head_count") < 1 or header.number("attention.head_count_kv") < 1:
        raise ModelFileError(f"{name} is corrupt: it has no attention heads.")
    usual = header.number("embedding_length") // header.number("attention.head_count")
    stated = [header.metadata.get(f"dflash.attention.{part}_length", usual) for part in ("key", "value")]
    if stated[0] != stated[1]:
        raise ModelFileError(f"{name} is corrupt: keys have {stated[0]} numbers, and values {stated[1]}.")
    size, turned = stated[0], header.metadata.get("dflash.rope.dimension_count", stated[0])
    if not isinstance(size, int) or not isinstance(turned, int) or not 0 < turned <= size or turned % 2:
        raise ModelFileError(f"{name} is corrupt: it turns {turned} of {size} numbers of a key.")
    if header.number("attention.sliding_window") > 0:
        pattern = header.array("dflash.attention.sliding_window_pattern")
        if len(pattern) != header.n_layers or not any(value is True for value in pattern):
            raise ModelFileError(f"{name} is corrupt: it does not say which of its layers have a sliding window.")


def _check_tensors(header: Header, tensors: Mapping[str, Tensor], kind: str) -> None:
    for name in _needed(header, kind):
        if name not in tensors:
            raise ModelFileError(f"{header.path} lacks the tensor {name}.")


def _needed(header: Header, kind: str) -> Iterator[str]:
    """Names of the tensors without which llama.cpp refuses the file or localspec cannot read its rows."""
    yield from ("fc.weight", "enc.output_norm.weight", "output_norm.weight")
    for layer in range(header.n_layers):
        yield from (f"blk.{layer}.{part}.weight" for part in _LAYER_TENSORS)
        if kind == "dflash2":
            yield from (f"blk.{layer}.{part}_conv_base" for part in ("attn", "ffn"))
            yield from (f"blk.{layer}.{part}_conv_proj.weight" for part in ("attn", "ffn"))
    if kind == "dspark":
        yield from ("markov_w1.weight", "markov_w2.weight")
    if kind == "dflash2":
        yield from ("selector_predecessor.weight", "selector_successor.weight", "selector_hidden.weight")


def _check_selector(header: Header) -> None:
    hidden = header.number("embedding_length")
    for key in _SELECTOR_KEYS:
        if header.number(key) < 1:
            raise ModelFileError(f"{header.path.name} is corrupt: dflash.{key} is {header.number(key)}.")
    group, count = header.number("conv_group_size"), header.number("selector_top_k")
    if hidden % group or hidden < count * (count + 1):
        raise ModelFileError(
            f"{header.path.name} is corrupt: groups of {group} and {count} candidates do not fit {hidden} numbers."
        )


def _check_markov(header: Header, tensors: Mapping[str, Tensor], ids: npt.NDArray[np.int64] | None) -> None:
    """The two tables, of which localspec reads rows, must be of one rank and of the head's tokens."""
    tokens = header.count("tokenizer.ggml.tokens")
    before, after = tensors["markov_w1.weight"].shape, tensors["markov_w2.weight"].shape
    if len(before) != 2 or len(after) != 2 or before[0] != after[0]:
        raise ModelFileError(f"{header.path.name} is corrupt: its Markov tables are {list(before)} and {list(after)}.")
    if before[1] < tokens or after[1] < (tokens if ids is None else len(ids)):
        raise ModelFileError(f"{header.path.name} is corrupt: its Markov tables have too few tokens.")
