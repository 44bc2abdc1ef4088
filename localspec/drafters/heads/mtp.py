"""MTP / NextN heads: layers that were trained with the target to guess on from its own states.

They lie in the target's own file, in a companion of it (`mtp-*.gguf`: these layers, the embeddings and the output), or
in another copy of the whole model. Hidden states, architecture and tokens must be the target's.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from weakref import WeakSet

from localspec import paths
from localspec.drafters.heads.head import Weights
from localspec.drafters.heads.mtp_context import MtpContext, runs
from localspec.drafters.models.draft_model import DraftModel, DraftModelSettings
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.gguf.split import read_parts
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import SHOWS_NEXTN, Tap
from localspec.llama.model import Model, check_text_model
from localspec.models.facts import pairing
from localspec.models.facts.heads import check_forgets, nextn_layers

_NEEDED_TENSORS = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm", "attn_output")
"""Tensors of every MTP layer, without which llama.cpp ends the process or says nothing of use."""
_WITHOUT_EXPERTS = frozenset({"mimo2", "qwen35"})
"""Architectures whose MTP layers have no experts, whatever the others of the model have."""
_MAYBE_EXPERTS = frozenset({"hy_v3", "step35"})
"""Architectures whose MTP layers may or may not have experts; MTP layers of all others have experts."""
_FUSED_EXPERTS = frozenset({"cohere2moe", "deepseek2", "hy_v3", "qwen35moe", "qwen3next"})
"""Architectures whose experts may have one matrix for gate and up projection (`ffn_gate_up_exps`)."""
_LEADING_DENSE = frozenset({"deepseek2", "deepseek32", "glm-dsa", "glm4moe"})
"""Architectures where llama.cpp reads an MTP layer as dense if `leading_dense_block_count` reaches it."""
_WHOLE_ROTATION = frozenset({"cohere2moe", "hy_v3"})
"""Architectures that rotate whole keys (RoPE); key and value have the same length."""
_OUTPUT_TENSOR = "nextn.shared_head_head"
"""Name of an MTP layer's own output matrix, which not every layer has."""


class MtpHead:
    """The MTP layers of one file, for one target; see `drafters.head.Head`."""

    name = "mtp"
    tap = Tap(nextn=True)

    def __init__(self, path: Path, own: bool) -> None:
        """`own`: whether it is the target's own file. Use `load`."""
        self.path = path
        self.own = own
        self._drafters: WeakSet[DraftModel] = WeakSet()
        self._weights = Weights(path, Model)
        """Weights of the file, loaded if the target's own layers cannot be used."""

    def attach(self, target: Context, branches: int) -> DraftModel:
        """Makes a drafter with a cache of its own. Layers in the target's own file serve as they are, if the target
        loaded them; others are loaded once, and freed with the head.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        like = target.model
        model = like if self.own and like.has_nextn else self._weights.beside(like, kernels=like.kernels, nextn=True)
        context = MtpContext(model, target)
        drafter = DraftModel(context, like.end_tokens, DraftModelSettings(branches), self.name, context.close)
        self._drafters.add(drafter)
        return drafter

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()
        self._weights.close()


def load(path: Path, target: Header) -> MtpHead:
    """Reads the header of a file and compares it with its target's.

    Args:
        path: a GGUF file with MTP layers, alone or after a whole model; may be the target's own.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: damaged, or without tensors that an MTP layer needs.
        PairError: no MTP layers, layers that llama.cpp does not run, or made for another model; the message names the
            first fact that differs.
    """
    header = check_text_model(path)
    own = paths.real(header.path) == paths.real(target.path)
    heads = nextn_layers(header)
    if not heads:
        raise PairError(f"{path.name} has no multi-token-prediction layers (MTP, NextN).")
    for fact, ours, theirs in _facts(target, header):
        if ours != theirs:
            raise PairError(
                f"{path.name} cannot draft for {target.path.name}: {fact}: {ours} in the target, {theirs} in the head."
            )
    if not runs(header.architecture, heads) or header.architecture not in SHOWS_NEXTN:
        raise PairError(
            f"llama.cpp cannot draft with {heads} multi-token-prediction layers of the architecture"
            f" {header.architecture}, which {path.name} has."
        )
    check_forgets(target)
    _check_shape(header, header.number("block_count") - heads)
    _check_tensors(header, heads)
    if not own:
        pairing.check(target, header)
    return MtpHead(path, own)


def _facts(target: Header, head: Header) -> Iterator[tuple[str, str, str]]:
    """(fact, of the target, of the head), all of which must be equal."""
    yield "architecture", target.architecture, head.architecture
    for fact, key in (("hidden size", "embedding_length"), ("size of a state", "embedding_length_out")):
        yield fact, str(target.number(key)), str(head.number(key))
    facts = ("size of a key", "size of a value", "turned numbers of a key")
    for fact, ours, theirs in zip(facts, _sizes(target), _sizes(head), strict=True):
        yield fact, str(ours), str(theirs)
    tokens = "tokenizer.ggml.tokens"
    yield "vocabulary", f"{target.count(tokens)} tokens", f"{head.count(tokens)} tokens"


def _sizes(header: Header) -> tuple[int, int, int]:
    """Numbers in a key, in a value, and those of a key that tell its position; what is not stated as llama.cpp takes
    it to be.
    """

    def stated(key: str, usual: int) -> int:
        return header.number(key) if f"{header.architecture}.{key}" in header.metadata else usual

    heads = header.numbers("attention.head_count")[0]
    usual = header.number("embedding_length") // heads if heads > 0 else 0
    key = stated("attention.key_length", usual)
    return key, stated("attention.value_length", usual), stated("rope.dimension_count", key)


def _check_shape(header: Header, first: int) -> None:
    """Refuses what llama.cpp ends the process over though all tensors are there.

    Args:
        header: of the head.
        first: its first MTP layer.
    """
    name, architecture = header.path.name, header.architecture
    refused = f"llama.cpp cannot draft with the MTP layers of {name} ({architecture}):"
    key, value, turned = _sizes(header)
    if architecture in _WHOLE_ROTATION and not key == value == turned:
        raise PairError(f"{refused} keys have {key} numbers, of which {turned} are turned, and values {value}.")
    if architecture in _LEADING_DENSE and header.number("leading_dense_block_count") > first:
        raise PairError(f"{refused} they have no experts.")
    if architecture != "deepseek2":
        return
    for fact in ("attention.key_length_mla", "attention.value_length_mla", "attention.q_lora_rank"):
        if header.number(fact) <= 0:
            raise PairError(f"{refused} their attention is not compressed ({fact}).")
    if header.real("attention.temperature_scale"):
        raise PairError(f"{refused} their attention has a temperature.")


def _check_tensors(header: Header, heads: int) -> None:
    names = {tensor.name for part in read_parts(header.path) for tensor in part.tensors}
    last = header.number("block_count")
    for layer in range(last - heads, last):
        start = f"blk.{layer}."
        held = {name.removeprefix(start).removesuffix(".weight") for name in names if name.startswith(start)}
        missing = [name for name in _needed(header.architecture, held) if name not in held]
        if missing:
            raise ModelFileError(f"{header.path} lacks the tensor {start}{missing[0]}.weight of its MTP layer.")
        if "output.weight" not in names and header.architecture == "step35" and _OUTPUT_TENSOR not in held:
            raise ModelFileError(f"{header.path} lacks the tensor output.weight.")
    if "token_embd.weight" not in names:
        raise ModelFileError(f"{header.path} lacks the tensor token_embd.weight.")


def _needed(architecture: str, held: Container[str]) -> Iterator[str]:
    """Tensors that an MTP layer needs.

    Args:
        architecture: of the model.
        held: those it has, without the layer's number and ".weight".
    """
    yield from _NEEDED_TENSORS
    if architecture == "mimo2":
        yield "attn_qkv"
    if architecture in _WITHOUT_EXPERTS or (architecture in _MAYBE_EXPERTS and "ffn_gate_inp" not in held):
        yield from ("ffn_gate", "ffn_up", "ffn_down")
        return
    gates = architecture != "nemotron_h_moe"
    yield from ("ffn_gate_inp", "ffn_down_exps")
    if architecture not in _FUSED_EXPERTS or "ffn_gate_up_exps" not in held:
        yield from ("ffn_gate_exps", "ffn_up_exps") if gates else ("ffn_up_exps",)
    shared = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp") if gates else ("ffn_up_shexp", "ffn_down_shexp")
    if any(name in held for name in shared):
        yield from shared
