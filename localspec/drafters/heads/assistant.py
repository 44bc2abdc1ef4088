"""Assistants of Gemma 4: a few layers that guess on from the target's last state and read the target's own cache.

Files are GGUF of llama.cpp's architecture `gemma4-assistant`, as its own conversion writes them
(google/gemma-4-*-it-assistant).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localspec.drafters.heads.assistant_context import AssistantContext
from localspec.drafters.heads.head import Weights
from localspec.drafters.models.draft_model import DraftModel, DraftModelSettings
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import SHOWS_NEXTN, Tap
from localspec.llama.model import Model, check_text_model
from localspec.models.facts import pairing
from localspec.models.facts.heads import draft_kind

_TARGET_ARCHITECTURES = {"gemma4-assistant": "gemma4"}
"""{architecture of an assistant: architecture of its targets}."""
_LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_q_norm", "attn_output", "post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up",
    "ffn_down", "post_ffw_norm", "layer_output_scale",
)  # fmt: skip
"""Tensors of each layer, without which llama.cpp refuses the file."""


class AssistantHead:
    """One file for one target; see `drafters.head.Head`."""

    name = "assistant"
    tap = Tap(nextn=True)

    def __init__(self, path: Path) -> None:
        self.path = path
        self._weights = Weights(path, Model)

    def attach(self, target: Context, branches: int) -> DraftModel:
        """Makes a drafter over the target's cache, which is emptied; the weights are loaded once, and freed with the
        head.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        context = AssistantContext(self._weights.beside(target.model, nextn=True), target)
        end_tokens = target.model.end_tokens
        return DraftModel(context, end_tokens, DraftModelSettings(branches), self.name, context.close)

    def close(self) -> None:
        self._weights.close()


def load(path: Path, target: Header) -> AssistantHead:
    """Reads the header of a file and compares it with its target's; what would end the process is refused here.

    Args:
        path: a GGUF file of the architecture `gemma4-assistant`.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: damaged, or without a tensor that it needs.
        PairError: no assistant, or made for another model; the message names the first fact that differs.
    """
    header = check_text_model(path)
    kind = draft_kind(header)
    if kind.method != AssistantHead.name:
        raise PairError(f"{path.name} is {kind.sentence}, not an assistant.")
    wanted = _TARGET_ARCHITECTURES.get(header.architecture)
    if wanted is None or target.architecture != wanted or target.architecture not in SHOWS_NEXTN:
        raise PairError(
            f"{path.name} ({header.architecture}) cannot draft for {target.path.name} ({target.architecture})."
        )
    _check_tensors(header)
    _check_layers(header)
    for fact, ours, theirs in _facts(target, header):
        if ours != theirs:
            raise PairError(
                f"{path.name} cannot draft for {target.path.name}: {fact}: {ours} in the target, {theirs} in the head."
            )
    pairing.check(target, header)
    return AssistantHead(path)


def _check_tensors(header: Header) -> None:
    held = {tensor.name for tensor in header.tensors}
    names = [f"blk.{layer}.{part}" for layer in range(header.n_layers) for part in _LAYER_TENSORS]
    for name in ("token_embd", "output_norm", "nextn.pre_projection", "nextn.post_projection", *names):
        if f"{name}.weight" not in held:
            raise ModelFileError(f"{header.path} lacks the tensor {name}.weight.")


def _check_layers(header: Header) -> None:
    """Numbers over which llama.cpp ends the process."""
    name, layers = header.path.name, header.n_layers
    if header.number("nextn_predict_layers") != layers:
        raise ModelFileError(f"{name} is corrupt: {header.number('nextn_predict_layers')} of {layers} layers predict.")
    windows = _windows(header)
    if len(windows) != layers or not any(windows):
        raise ModelFileError(f"{name} is corrupt: it does not say which of its layers have a sliding window.")
    if header.number("attention.sliding_window") < 1:
        raise ModelFileError(f"{name} is corrupt: its sliding window has no tokens.")
    if header.number("embedding_length_out") == header.number("embedding_length"):
        raise ModelFileError(f"{name} is corrupt: it does not say how large a state of its target is.")
    for suffix in ("", "_swa"):
        key, value = (header.number(f"attention.{part}_length{suffix}") for part in ("key", "value"))
        turned = header.number(f"rope.dimension_count{suffix}") or key
        if key != value or key < 1:
            raise ModelFileError(f"{name} is corrupt: keys have {key} numbers, and values {value}.")
        if turned % 2 or not 0 < turned <= key:
            raise ModelFileError(f"{name} is corrupt: it turns {turned} of {key} numbers of a key.")


def _facts(target: Header, head: Header) -> Iterator[tuple[str, str, str]]:
    """(fact, of the target, of the head), all of which must be equal: a state, and the cache that both read."""
    yield "hidden size", str(target.number("embedding_length")), str(head.number("embedding_length_out"))
    windows, own = _windows(target), _windows(head)
    yield "sliding windows of the last two layers", str(windows[-2:]), str([True, False])
    for suffix in ("", "_swa"):
        key = f"attention.key_length{suffix}"
        yield f"size of a key ({key})", str(target.number(key)), str(head.number(key))
    for layer, window in enumerate(own):
        ours = _per_layer(target, target.n_layers - (2 if window else 1))
        yield f"keys of a token (layer {layer} of the head)", str(ours), str(_per_layer(head, layer))


def _windows(header: Header) -> list[bool]:
    """For each layer, whether it has a sliding window; empty if the file does not list layers."""
    return [value is True for value in header.array(f"{header.architecture}.attention.sliding_window_pattern")]


def _per_layer(header: Header, layer: int) -> int:
    """Keys and values that the heads of a layer share; 0 where the file does not say."""
    found = header.numbers("attention.head_count_kv")
    return found[0] if len(found) == 1 else found[layer] if 0 <= layer < len(found) else 0
