"""EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840): one layer that guesses on from what three layers of its target saw.

Files are GGUF of llama.cpp's architecture `eagle3`, as its own conversion writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localspec.drafters.heads.eagle3_context import Eagle3Context
from localspec.drafters.heads.head import Weights
from localspec.drafters.heads.head_model import HeadModel
from localspec.drafters.heads.head_tokens import check_rows, guessed_ids
from localspec.drafters.models.best_first import BestFirst
from localspec.drafters.models.draft_model import DraftModelSettings
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import SHOWS_LAYERS, SHOWS_NEXTN, Tap
from localspec.llama.model import check_text_model
from localspec.models.facts import pairing
from localspec.models.facts.checkpoint import is_checkpoint
from localspec.models.facts.heads import check_forgets, draft_kind, nextn_layers

_TAPPED_LAYERS = 3


class Eagle3Head:
    """One file for one target; see `drafters.head.Head`."""

    name = "eagle3"

    def __init__(self, path: Path, layers: tuple[int, ...], n_layers: int) -> None:
        """`layers`: of the target's `n_layers`, in the head's own order. Use `load`."""
        self.path, self.layers = path, layers
        self.tap = Tap(tuple(sorted({layer for layer in layers if layer < n_layers})), nextn=n_layers in layers)
        self._weights = Weights(path, HeadModel)

    def attach(self, target: Context, branches: int) -> BestFirst:
        """Makes a drafter with a cache of its own; the weights are loaded once, and freed with the head.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        context = Eagle3Context(self._weights.beside(target.model), target, self.layers)
        settings = DraftModelSettings(branches)
        return BestFirst(context, target.model.end_tokens, settings, self.name, context.close)

    def close(self) -> None:
        self._weights.close()


def load(path: Path, target: Header) -> Eagle3Head:
    """Reads the header of a head and compares it with its target's; what would end the process is refused here.

    Args:
        path: a GGUF file of the architecture `eagle3`.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: damaged, or without a tensor that it needs.
        PairError: no EAGLE-3 head, made for another model, or the target's architecture does not show its layers; the
            message names the first fact that differs.
    """
    if is_checkpoint(path):
        raise ModelFileError(
            f"{path.name} is an EAGLE-3 head as published for Python; localspec reads it as GGUF.",
            "Convert it with llama.cpp: convert_hf_to_gguf.py PATH --target-model-dir TARGET.",
        )
    header = check_text_model(path)
    kind = draft_kind(header)
    if kind.method != Eagle3Head.name:
        raise PairError(f"{path.name} is {kind.sentence}, not an EAGLE-3 head.")
    check_forgets(target)
    pairing.check(target, header)
    layers = _layers(header, target)
    _check_tensors(header, target)
    return Eagle3Head(path, layers, _count(target))


def _count(target: Header) -> int:
    """Layers of the target, those of multi-token prediction not counted."""
    return target.n_layers - nextn_layers(target)


def _layers(header: Header, target: Header) -> tuple[int, ...]:
    """The layers whose inputs the head reads, if this llama.cpp shows them."""
    layers = header.array("eagle3.target_layers")
    count = _count(target)
    if len(layers) != _TAPPED_LAYERS or not all(isinstance(layer, int) and layer >= 0 for layer in layers):
        raise ModelFileError(f"{header.path.name} is corrupt: it names target layers {list(layers)}, not three.")
    found = tuple(int(layer) for layer in layers)
    if max(found) > count:
        raise PairError(
            f"{header.path.name} cannot draft for {target.path.name}: number of layers is {count} in the target, and"
            f" the head reads layer {max(found)}."
        )
    if target.architecture not in SHOWS_LAYERS or (count in found and target.architecture not in SHOWS_NEXTN):
        raise PairError(
            f"llama.cpp does not show what goes into layers of the architecture {target.architecture}, which"
            f" {header.path.name} reads."
        )
    return found


def _check_tensors(header: Header, target: Header) -> None:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    if header.n_layers != 1:
        raise ModelFileError(
            f"{header.path.name} is corrupt: an EAGLE-3 head has one layer, this has {header.n_layers}."
        )
    key, value = (header.number(f"attention.{part}_length") for part in ("key", "value"))
    if key != value:
        raise ModelFileError(f"{header.path.name} is corrupt: keys have {key} numbers, and values {value}.")
    for name in _needed(header):
        if f"{name}.weight" not in tensors:
            raise ModelFileError(f"{header.path} lacks the tensor {name}.weight.")
    hidden, wide = header.number("embedding_length"), target.number("embedding_length")
    size, turned = key or hidden // max(1, header.number("attention.head_count")), header.number("rope.dimension_count")
    if turned > size or turned % 2:
        raise ModelFileError(f"{header.path.name} is corrupt: it turns {turned} of {size} numbers of a key.")
    for name, role in (("token_embd.weight", "embeddings"), ("output.weight", "output matrix")):
        if name not in tensors and hidden != wide:
            raise PairError(
                f"{header.path.name} cannot draft for {target.path.name}: it brings no {role}, and hidden size is"
                f" {wide} in the target and {hidden} in the head."
            )
    check_rows(header, tensors, target)
    guessed_ids(header, tensors, target)


def _needed(header: Header) -> Iterator[str]:
    yield from ("fc", "output_norm")
    if header.flag("eagle3.norm_before_fc"):
        yield "enc.output_norm"
    for part in ("attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output"):
        yield f"blk.0.{part}"
    for part in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
        yield f"blk.0.{part}"
