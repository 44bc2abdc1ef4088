"""Layers that guess on from the target's own last states: multi-token prediction, and assistants of Gemma 4.

Multi-token prediction (MTP, NextN): layers that were trained with the target. They lie in the target's own file, in a
companion of it (`mtp-*.gguf`: these layers, the embeddings and the output), or in another copy of the whole model.
Hidden states, architecture and tokens must be the target's.

Row t of a layer's cache reads token t together with the state after token t - 1 and guesses what follows token t: it is
cell t - 1 of `head_cache`.

A model may bring several layers (*heads*), one for each depth of the guess: then every head reads what the target
knows, and the one of depth i reads what was guessed so far anew, as llama.cpp does (common/speculative.cpp).

An assistant has a few layers that read the target's cache and write none. A pass takes a token together with the state
that led to it: after the target's last pass its state, after a guess the assistant's own. All guesses of a draft stand
at the position of the first, as the assistant was trained (llama.cpp, common/speculative.cpp). So nothing of a draft
needs to be taken back. Files are GGUF of llama.cpp's architecture `gemma4-assistant`, as its own conversion writes them
(google/gemma-4-*-it-assistant).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.drafters.heads.head import Head, beside, check_equal, check_held, check_keys, key_sizes, read_head, runs
from localspec.drafters.heads.head_cache import MOST_PASS_ROWS, HeadCache, HeadPasses, HeadRow
from localspec.errors import DecodeError, ModelFileError, PairError
from localspec.gguf import Header, read_parts
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.handle import context_parameters, most_rows
from localspec.llama.library.settings import NEXTN, NO_TAP, SHOWS_NEXTN, Tap
from localspec.llama.model import Model, check_text_model
from localspec.models.facts import pairing
from localspec.models.facts.heads import check_forgets, nextn_layers
from localspec.types import Float32Array, Tokens

_STATES_OF_OUTPUTS = frozenset({"mimo2", "qwen3next", "step35"})
"""Architectures that return states only for rows with logits; asked for all states, llama.cpp ends the process."""


class MtpContext(HeadCache):
    """The cache of a model's MTP layers: cell p is row p + 1 of a layer, since a layer also has a row of the very first
    token, with no state before it. After one token alone they guess nothing."""

    def __init__(self, model: Model, target: Context) -> None:
        """From a model loaded with its MTP layers, the target's own or a companion. Model and target, which keeps the
        states that layers start from (`Tap(nextn=True)`), must stay open."""
        self._api, self._extension = lib.api(), lib.extension()
        self.heads = int(self._api.llama_model_n_layer_nextn(model.handle))
        """Number of MTP layers, each for one depth of a draft; a single one guesses at every depth."""
        super().__init__(target, (NEXTN,), model.n_vocab)
        self.n_paths = 1
        if self.heads > 1:
            self.most_guesses = self.heads
        settings = replace(target.settings, max_leaves=1, grid_prefill=False, rollback=0)
        self.pass_rows = most_rows(settings)
        params = context_parameters(model, settings, target.threads, NO_TAP)
        params.ctx_type = self._api.LLAMA_CONTEXT_TYPE_MTP
        params.n_batch = params.n_ubatch = max(MOST_PASS_ROWS, self.pass_rows) + self._n_slots
        self._passes = HeadPasses(
            model,
            params,
            int(self._api.llama_model_n_embd_out(model.handle)),
            states="outputs" if model.header.architecture in _STATES_OF_OUTPUTS else "all",
            what="a context of {name}'s MTP layers",
        )

    def _trunk_rows(self, slot: int, tokens: Tokens, start: int, stop: int) -> list[HeadRow]:
        rows = super()._trunk_rows(slot, tokens, start, stop)
        nothing = np.zeros(self._passes.width, dtype=np.float32)
        return rows if start else [HeadRow(slot, int(tokens[0]), -1, None, nothing, None), *rows]

    def _compute(self, rows: Sequence[HeadRow], wanted: Sequence[int]) -> list[tuple[Float32Array, Float32Array]]:
        if self.heads == 1 or rows[0].sequence is None:
            for head in reversed(range(self.heads)):  # all read what the target knows
                said = self._pass(rows, wanted, head)
            return said
        found = dict[int, tuple[Float32Array, Float32Array]]()
        for depth in {len(row.path or ()) for row in rows}:  # its head reads all guesses of a path anew
            places = [place for place, row in enumerate(rows) if len(row.path or ()) == depth]
            again = [one for place in places for one in self._path_rows(rows[place])]
            said = self._pass(again, range(depth - 1, len(again), depth), depth)
            found |= {place: (state.copy(), row.copy()) for place, (state, row) in zip(places, said, strict=True)}
        return [found[place] for place in wanted]

    def _path_rows(self, last: HeadRow) -> list[HeadRow]:
        """The rows of all guesses of a path, the last one given."""
        path, guesses = last.path or (), self._trunks[last.slot].guesses
        first = last.position + 1 - len(path)
        return [
            HeadRow(last.slot, token, first + place, 0, guesses[path[:place]].state, None)
            for place, token in enumerate(path)
        ]

    def _pass(
        self, rows: Sequence[HeadRow], wanted: Sequence[int], head: int
    ) -> list[tuple[Float32Array, Float32Array]]:
        """The state and the logits of each row that is wanted; views that are valid until the next pass."""
        passes, pointer = self._passes, self._passes.handle.pointer
        for slot, start in {row.slot: row.position for row in reversed(rows)}.items():
            passes.remove(slot, start + 1)
        output = np.zeros(len(rows), dtype=np.bool_)
        output[list(wanted)] = True
        batch = _batch(passes, rows, [row.position + 1 for row in rows], output)
        if self.heads > 1:
            self._extension.llama_set_nextn_layer_offset(pointer, head)
        passes.decode(batch)
        return [
            (
                _row(self._extension.llama_get_embeddings_nextn_ith(pointer, row), passes.width),
                _row(self._api.llama_get_logits_ith(pointer, row), self.n_vocab),
            )
            for row in wanted
        ]

    def _remove(self, slot: int, start: int) -> None:
        self._passes.remove(slot, start + 1 if start else 0)


def _batch(
    passes: HeadPasses, rows: Sequence[HeadRow], positions: Sequence[int], output: bool | npt.NDArray[np.bool_]
) -> Any:
    """The llama_batch of rows whose slots have one sequence each."""
    tokens, states = [row.token for row in rows], np.stack([row.state for row in rows])
    return passes.batch(positions, [(row.slot, 1) for row in rows], output, tokens=tokens, states=states)


def _row(pointer: Any, count: int) -> Float32Array:
    """float32[count] of the last pass, a view."""
    if not pointer:
        raise DecodeError("llama.cpp does not show what its pass over MTP layers computed.")
    return np.ctypeslib.as_array(pointer, shape=(count,))


_NEEDED_TENSORS = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm", "attn_output")
"""Tensors of every MTP layer, without which llama.cpp ends the process or says nothing of use."""
_WITHOUT_EXPERTS = frozenset({"mimo2", "qwen35"})
"""Architectures whose MTP layers have no experts, even if other layers of the model do."""
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


def load(path: Path, target: Header) -> Head:
    """Reads a GGUF file with MTP layers, alone or after a whole model; may be the target's own. See `head`."""
    header = check_text_model(path)
    own = paths.real(header.path) == paths.real(target.path)
    heads = nextn_layers(header)
    if not heads:
        raise PairError(f"{path.name} has no multi-token-prediction layers (MTP, NextN).")
    facts = ["architecture", "hidden size", "size of a state"]
    facts += ["size of a key", "size of a value", "turned numbers of a key", "vocabulary"]
    check_equal(path, target, zip(facts, _shape(target), _shape(header), strict=True))
    if not runs(header.architecture, heads) or header.architecture not in SHOWS_NEXTN:
        raise PairError(
            f"llama.cpp cannot draft with {heads} multi-token-prediction layers of the architecture"
            f" {header.architecture}, which {path.name} has."
        )
    check_forgets(target)
    _check_layers(header, heads)
    if not own:
        pairing.check(target, header)

    def weights(target: Context) -> Model | None:
        if own and target.model.has_nextn:
            return None  # the target's own
        return beside(path, Model, target, target.model.kernels, nextn=True)

    return Head("mtp", path, Tap(nextn=True), weights, lambda model, target: MtpContext(model or target.model, target))


def _shape(header: Header) -> tuple[object, ...]:
    """Facts that must be equal in a target and in its head."""
    sizes = (header.number(key) for key in ("embedding_length", "embedding_length_out"))
    return header.architecture, *sizes, *key_sizes(header), f"{header.count('tokenizer.ggml.tokens')} tokens"


def _check_layers(header: Header, heads: int) -> None:
    """Refuses what llama.cpp ends the process over, though all tensors may be there."""
    name, architecture, last = header.path.name, header.architecture, header.number("block_count")
    refused = f"llama.cpp cannot draft with the MTP layers of {name} ({architecture}):"
    key, value, turned = key_sizes(header)
    if architecture in _WHOLE_ROTATION and not key == value == turned:
        raise PairError(f"{refused} keys have {key} numbers, of which {turned} are turned, and values {value}.")
    if architecture in _LEADING_DENSE and header.number("leading_dense_block_count") > last - heads:
        raise PairError(f"{refused} they have no experts.")
    if architecture == "deepseek2":
        for fact in ("attention.key_length_mla", "attention.value_length_mla", "attention.q_lora_rank"):
            if header.number(fact) <= 0:
                raise PairError(f"{refused} their attention is not compressed ({fact}).")
        if header.real("attention.temperature_scale"):
            raise PairError(f"{refused} their attention has a temperature.")
    names = {tensor.name for part in read_parts(header.path) for tensor in part.tensors}
    for layer in range(last - heads, last):
        start = f"blk.{layer}."
        held = {name.removeprefix(start).removesuffix(".weight") for name in names if name.startswith(start)}
        if missing := [name for name in _needed(architecture, held) if name not in held]:
            raise ModelFileError(f"{header.path} lacks the tensor {start}{missing[0]}.weight of its MTP layer.")
        if "output.weight" not in names and architecture == "step35" and _OUTPUT_TENSOR not in held:
            raise ModelFileError(f"{header.path} lacks the tensor output.weight.")
    if "token_embd.weight" not in names:
        raise ModelFileError(f"{header.path} lacks the tensor token_embd.weight.")


def _needed(architecture: str, held: Container[str]) -> Iterator[str]:
    """Tensors that an MTP layer needs which has those `held`, without the layer's number and ".weight"."""
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


class AssistantContext(HeadCache):
    """Guesses over the target's own cache, and has no cells itself: of a trunk only the last row is computed."""

    def __init__(self, model: Model, target: Context) -> None:
        """llama.cpp empties the target's cache when it shares it. Model and target, which keeps the states that an
        assistant starts from (`Tap(nextn=True)`), must stay open as long as this is used."""
        super().__init__(target, (NEXTN,), model.n_vocab)
        self.n_paths, self.pass_rows, self._target = 1, self.n_ctx, target
        api = lib.api()
        params = context_parameters(model, target.settings, target.threads, NO_TAP)
        params.ctx_type = api.LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = target.handle.pointer
        width = int(api.llama_model_n_embd_out(model.handle))
        try:
            self._passes = HeadPasses(model, params, width)
        finally:
            for slot in range(self._n_slots):
                target.forget(slot)

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int = 0) -> int:
        """There is nothing to read: the cache is the target's."""
        return len(tokens) - 1

    reusable = prefill_chunk

    def _sync(self, slot: int, tokens: Tokens) -> tuple[int, int]:
        """As ever, but a first guess needs the target's state of every token but the last: the pass drops the rest of
        the target's cache."""
        start, stop = super()._sync(slot, tokens)
        if start < stop < self._target.held(slot)[0].size:
            self._target.forget(slot, stop)  # rejected guesses, which a pass would see
        return (start if self._trunks[slot].guesses or stop == len(tokens) - 1 else stop), stop

    def _fill(self, slot: int, tokens: Tokens, start: int, stop: int) -> None:
        pass

    def _remove(self, slot: int, start: int) -> None:
        pass

    def _trunk_rows(self, slot: int, tokens: Tokens, start: int, stop: int) -> list[HeadRow]:
        return super()._trunk_rows(slot, tokens, stop - 1, stop)

    def _compute(self, rows: Sequence[HeadRow], wanted: Sequence[int]) -> Iterable[tuple[Float32Array, Float32Array]]:
        passes, count = self._passes, len(rows)
        passes.decode(_batch(passes, rows, [row.position + 1 - len(row.path or ()) for row in rows], True))
        return zip(passes.states(count), passes.logits(count), strict=True)


_TARGET_ARCHITECTURES = {"gemma4-assistant": "gemma4"}
_ASSISTANT_PARTS = ("attn_q_norm", "post_attention_norm", "post_ffw_norm", "layer_output_scale")


def load_assistant(path: Path, target: Header) -> Head:
    header = read_head(path, ("assistant",), "an assistant")
    wanted = _TARGET_ARCHITECTURES.get(header.architecture)
    if wanted is None or target.architecture != wanted or target.architecture not in SHOWS_NEXTN:
        raise PairError(
            f"{path.name} ({header.architecture}) cannot draft for {target.path.name} ({target.architecture})."
        )
    everywhere = ("token_embd", "output_norm", "nextn.pre_projection", "nextn.post_projection")
    check_held(header, (f"{name}.weight" for name in everywhere), *_ASSISTANT_PARTS)
    # Numbers over which llama.cpp ends the process.
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
    check_equal(path, target, _assistant_facts(target, header))
    pairing.check(target, header)
    tap = Tap(nextn=True)
    return Head("assistant", path, tap, lambda target: beside(path, Model, target, nextn=True), AssistantContext)


def _assistant_facts(target: Header, head: Header) -> Iterator[tuple[str, str, str]]:
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
