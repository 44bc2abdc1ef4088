"""MTP / NextN heads: layers that were trained with the target to guess on from its own states.

They lie in the target's own file, in a companion of it (`mtp-*.gguf`: these layers, the embeddings and the output), or
in another copy of the whole model. Hidden states, architecture and tokens must be the target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from weakref import WeakSet

from localspec.drafters.draft_model import DraftModel, DraftModelSettings
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.gguf.formats import ROLLS_BACK
from localspec.gguf.split import read_parts
from localspec.llama.context import Context
from localspec.llama.model import Model, check_text_model
from localspec.llama.mtp import MtpContext, runs
from localspec.llama.states import SHOWS_NEXTN, Tap
from localspec.models import pairing
from localspec.models.heads import check_forgets, nextn_layers

_NEEDED = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm", "attn_output")
"""Tensors of every MTP layer, without which llama.cpp ends the process or says nothing of use."""
_FEED_FORWARD = ("ffn_gate_inp", "ffn_up")
"""Of these a layer has one: the router of its experts, or a dense layer."""


class MtpHead:
    """The MTP layers of one file, for one target; see `drafters.head.Head`."""

    name = "mtp"
    tap = Tap(nextn=True)

    def __init__(self, path: Path, own: bool) -> None:
        """`own`: whether it is the target's own file. Use `load`."""
        self.path = path
        self.own = own
        self._drafters: WeakSet[DraftModel] = WeakSet()
        self._model: Model | None = None
        """What was loaded for it; None where the target's own layers serve."""

    def attach(self, target: Context, branches: int) -> DraftModel:
        """Makes a drafter with a cache of its own. Layers in the target's own file serve as they are, if the target
        loaded them; others are loaded once, and freed with the head.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        like = target.model
        model = like if self.own and like.has_nextn else self._loaded(like)
        context = MtpContext(model, target)
        drafter = DraftModel(context, like.end_tokens, DraftModelSettings(branches), self.name, context.close)
        self._drafters.add(drafter)
        return drafter

    def _loaded(self, like: Model) -> Model:
        if self._model is None:
            self._model = Model.load(
                self.path, gpu_layers=like.gpu_layers, device=like.device, kernels=like.kernels, nextn=True
            )
        return self._model

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()
        model, self._model = self._model, None
        if model is not None:
            model.close()


def load(path: Path, target: Header) -> MtpHead:
    """Reads the header of a file and compares it with its target's.

    Args:
        path: a GGUF file with MTP layers, alone or behind a whole model; may be the target's own.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: damaged, or without tensors that an MTP layer needs.
        PairError: no MTP layers, layers that llama.cpp does not run, or made for another model; the message names the
            first fact that differs.
    """
    header = check_text_model(path)
    own = header.path.resolve() == target.path.resolve()
    heads = nextn_layers(header)
    if header.architecture.endswith("-assistant"):
        raise PairError(
            f"{path.name} ({header.architecture}) reads the target's own cache, which localspec cannot share with it."
        )
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
    check_forgets(target, ROLLS_BACK, "It answers without drafts.")
    _check_tensors(header, heads)
    if not own:
        pairing.check(target, header)
    return MtpHead(path, own)


def _facts(target: Header, head: Header) -> Iterator[tuple[str, str, str]]:
    """(fact, of the target, of the head), all of which must be equal."""
    yield "architecture", target.architecture, head.architecture
    for fact, key in (("hidden size", "embedding_length"), ("size of a state", "embedding_length_out")):
        yield fact, str(target.number(key)), str(head.number(key))
    tokens = "tokenizer.ggml.tokens"
    yield "vocabulary", f"{target.count(tokens)} tokens", f"{head.count(tokens)} tokens"


def _check_tensors(header: Header, heads: int) -> None:
    names = {tensor.name for part in read_parts(header.path) for tensor in part.tensors}
    last = header.number("block_count")
    for layer in range(last - heads, last):
        missing = [name for name in _NEEDED if f"blk.{layer}.{name}.weight" not in names]
        if not any(f"blk.{layer}.{name}.weight" in names for name in _FEED_FORWARD):
            missing.append(_FEED_FORWARD[1])
        if missing:
            raise ModelFileError(f"{header.path} lacks the tensor blk.{layer}.{missing[0]}.weight of its MTP layer.")
    if "token_embd.weight" not in names:
        raise ModelFileError(f"{header.path} lacks the tensor token_embd.weight.")
