"""Assistants of Gemma 4: a few layers that guess on from the target's last state, read its cache and write none.

A pass takes a token together with the state that led to it: after the target's last pass its state, after a guess the
assistant's own. All guesses of a draft stand at the position of the first, as the assistant was trained
(llama.cpp, common/speculative.cpp). So nothing of a draft needs to be taken back. Files are GGUF of llama.cpp's
architecture `gemma4-assistant`, as its own conversion writes them (google/gemma-4-*-it-assistant).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from localspec.drafters.heads.head import Head, beside, check_equal, check_held, check_keys, read_head
from localspec.drafters.heads.head_cache import HeadPasses
from localspec.errors import ModelFileError, PairError, UsageError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import Tapped
from localspec.llama.library import lib
from localspec.llama.library.batch import common_prefix
from localspec.llama.library.handle import context_parameters
from localspec.llama.library.settings import NEXTN, NO_TAP, SHOWS_NEXTN, Tap
from localspec.llama.model import Model
from localspec.models.facts import pairing
from localspec.types import Feed, Float32Array, LogitRows, Tokens


class AssistantContext:
    """A `DraftContext` over the target's own cache."""

    def __init__(self, model: Model, target: Context) -> None:
        """llama.cpp empties the target's cache when it shares it. Model and target must stay open as long as this is
        used. Raises UsageError: the target does not keep the states that an assistant starts from
        (`Tap(nextn=True)`)."""
        if target.states is None or not target.states.tap.nextn:
            raise UsageError("An assistant needs a target that keeps the states it starts from.")
        self.n_ctx, self.n_vocab = target.n_ctx, min(model.n_vocab, target.n_vocab)
        self._target, self._tapped = target, Tapped(target.states, (NEXTN,))
        api, n_slots = lib.api(), target.settings.n_slots
        params = context_parameters(model, target.settings, target.threads, NO_TAP)
        params.ctx_type = api.LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = target.handle.pointer
        width = int(api.llama_model_n_embd_out(model.handle))
        try:
            self._passes = HeadPasses(model, params, n_slots, n_slots, width)
        finally:
            for slot in range(n_slots):
                target.forget(slot)
        self._own: list[dict[int, tuple[Tokens, Float32Array]]] = [{} for _ in range(n_slots)]
        """For each slot, {length: (tokens of a path, the assistant's own state after the path)}."""

    def close(self) -> None:
        self._passes.handle.close()

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after the last token of every feed, each of another slot; all -inf where its states are not there."""
        starts = [self._start(feed.slot, feed.tokens) for feed in feeds]
        rows = np.full((len(feeds), self.n_vocab), -np.inf, dtype=np.float32)
        ready = [(index, feeds[index], *start) for index, start in enumerate(starts) if start is not None]
        if ready:
            ready.sort(key=lambda one: one[1].slot)
            batch = self._passes.batch(
                [position for _, _, position, _ in ready],
                [(feed.slot, 1) for _, feed, _, _ in ready],
                True,
                tokens=[int(feed.tokens[-1]) for _, feed, _, _ in ready],
                states=np.stack([state for _, _, _, state in ready]),
            )
            self._passes.decode(batch)
            logits, states = self._passes.logits(len(ready)), self._passes.states(len(ready))
            for (index, feed, _, _), said, state in zip(ready, logits, states, strict=True):
                self._own[feed.slot][len(feed.tokens)] = (feed.tokens.copy(), state.copy())
                rows[index] = said[: self.n_vocab]
        return [LogitRows.from_matrix(rows[index : index + 1]) for index in range(len(feeds))]

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """There is nothing to read: the cache is the target's."""
        return len(tokens) - 1

    reusable = prefill_chunk

    def _start(self, slot: int, tokens: Tokens) -> tuple[int, Float32Array] | None:
        """The position of the pass and the state before the last token; None where that is not there."""
        start, known = self._tapped.span(slot, tokens)
        if start == known:
            return None
        if known == len(tokens) - 1:
            if self._target.held(slot)[0].size > known:
                self._target.forget(slot, known)  # rejected guesses, which the pass would see
            self._own[slot].clear()
            return known, self._tapped.read(slot, known - 1, known)[0]
        path, state = self._own[slot].get(len(tokens) - 1, (tokens, None))
        if state is None or common_prefix(path, tokens) < len(path):
            return None
        return known, state


_TARGET_ARCHITECTURES = {"gemma4-assistant": "gemma4"}
_LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_q_norm", "attn_output", "post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up",
    "ffn_down", "post_ffw_norm", "layer_output_scale",
)  # fmt: skip
"""Tensors of each layer, without which llama.cpp refuses the file."""


def load(path: Path, target: Header) -> Head:
    header = read_head(path, ("assistant",), "an assistant")
    wanted = _TARGET_ARCHITECTURES.get(header.architecture)
    if wanted is None or target.architecture != wanted or target.architecture not in SHOWS_NEXTN:
        raise PairError(
            f"{path.name} ({header.architecture}) cannot draft for {target.path.name} ({target.architecture})."
        )
    names = [f"blk.{layer}.{part}" for layer in range(header.n_layers) for part in _LAYER_TENSORS]
    everywhere = ("token_embd", "output_norm", "nextn.pre_projection", "nextn.post_projection")
    check_held(header, (f"{name}.weight" for name in (*everywhere, *names)))
    _check_layers(header)
    check_equal(path, target, _facts(target, header))
    pairing.check(target, header)
    tap = Tap(nextn=True)
    return Head("assistant", path, tap, lambda target: beside(path, Model, target, nextn=True), AssistantContext)


def _check_layers(header: Header) -> None:
    """Numbers over which llama.cpp ends the process."""
    name, layers, windows = header.path.name, header.n_layers, _windows(header)
    if header.number("nextn_predict_layers") != layers:
        raise ModelFileError(f"{name} is corrupt: {header.number('nextn_predict_layers')} of {layers} layers predict.")
    if len(windows) != layers or not any(windows):
        raise ModelFileError(f"{name} is corrupt: it does not say which of its layers have a sliding window.")
    if header.number("attention.sliding_window") < 1:
        raise ModelFileError(f"{name} is corrupt: its sliding window has no tokens.")
    if header.number("embedding_length_out") == header.number("embedding_length"):
        raise ModelFileError(f"{name} is corrupt: it does not say how large a state of its target is.")
    for suffix in ("", "_swa"):
        key, value = (header.number(f"attention.{part}_length{suffix}") for part in ("key", "value"))
        check_keys(header, key, value, header.number(f"rope.dimension_count{suffix}") or key)


def _facts(target: Header, head: Header) -> Iterator[tuple[str, str, str]]:
    """(fact, of the target, of the head), all of which must be equal: a state, and the cache that both read."""
    yield "hidden size", str(target.number("embedding_length")), str(head.number("embedding_length_out"))
    yield "sliding windows of the last two layers", str(_windows(target)[-2:]), str([True, False])
    for suffix in ("", "_swa"):
        key = f"attention.key_length{suffix}"
        yield f"size of a key ({key})", str(target.number(key)), str(head.number(key))
    for layer, window in enumerate(_windows(head)):
        ours = _per_layer(target, target.n_layers - (2 if window else 1))
        yield f"keys of a token (layer {layer} of the head)", str(ours), str(_per_layer(head, layer))


def _windows(header: Header) -> list[bool]:
    """For each layer, whether it has a sliding window; empty if the file does not list layers."""
    return [value is True for value in header.array(f"{header.architecture}.attention.sliding_window_pattern")]


def _per_layer(header: Header, layer: int) -> int:
    """Keys and values that the heads of a layer share; 0 where the file does not say."""
    found = header.numbers("attention.head_count_kv")
    return found[0] if len(found) == 1 else found[layer] if 0 <= layer < len(found) else 0
