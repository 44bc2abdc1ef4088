"""EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840): one layer that guesses on from what three layers of its target saw.

Files are GGUF of llama.cpp's architecture `eagle3`, as its own conversion writes them.

An EAGLE-3 head as llama.cpp runs it: an encoder that fuses what layers of the target saw, and one decoder layer.

Sequences are llama.cpp's: the trunk carries all of a slot's, a guess the one of its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.drafters.heads.head import Weights, check_rows, guessed_ids
from localspec.drafters.heads.head_cache import MOST_PASS_ROWS, HeadBatch, HeadCache, HeadModel, Row
from localspec.drafters.models.draft_model import BestFirst, DraftModelSettings
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.handle import Handle
from localspec.llama.library.settings import NEXTN, SHOWS_LAYERS, SHOWS_NEXTN, Tap
from localspec.llama.model import Model, check_text_model
from localspec.models.facts import pairing
from localspec.models.facts.checkpoint import is_checkpoint
from localspec.models.facts.heads import check_forgets, draft_kind, nextn_layers
from localspec.types import Float32Array


class Eagle3Context(HeadCache):
    """Evaluates histories and what is guessed after them."""

    def __init__(self, model: Model, target: Context, layers: Sequence[int]) -> None:
        """Allocates the cache.

        Args:
            model: the head, a `HeadModel`; must stay open as long as this is used.
            target: made with a tap of what the head reads; must stay open, too.
            layers: whose inputs the head was trained on, in its own order; the target's number of layers stands for
                what follows the last.
        """
        self._api = lib.api()
        last = int(self._api.llama_model_n_layer(target.model.handle))
        super().__init__(target, [NEXTN if layer == last else layer for layer in layers], model.n_vocab)
        self._n_embd, self._width = int(self._api.llama_model_n_embd(model.handle)), model.n_vocab
        self._handle = Handle(model, self._parameters(model, target), f"a context for {model.path.name}")
        self._memory = self._handle.memory
        lib.extension().llama_set_embeddings_nextn(self._handle.pointer, True, True)
        self._states_address: Callable[[int | None], Any] = lib.extension().llama_get_embeddings_nextn
        self._batch = HeadBatch(MOST_PASS_ROWS, self._n_slots * self.n_paths)

    def _parameters(self, model: Model, target: Context) -> Any:
        params = self._api.llama_context_default_params()
        params.n_ctx = (self.n_ctx + MOST_PASS_ROWS) * self._n_slots
        params.n_batch = params.n_ubatch = params.n_outputs_max = MOST_PASS_ROWS
        params.n_seq_max = self._n_slots * self.n_paths
        params.n_threads = params.n_threads_batch = target.threads
        params.kv_unified = True  # nothing relies on its bits, and paths need it
        params.op_offload = model.gpu_layers != 0
        params.no_perf = True
        params.ctx_other = target.handle.pointer  # whose embeddings and output matrix serve a head without its own
        return params

    def close(self) -> None:
        """Frees the cache. A second call does nothing."""
        self._handle.close()

    def _compute(self, rows: Sequence[Row], asked: bool) -> tuple[Float32Array, Float32Array] | None:
        """All rows are outputs or none: llama.cpp hands out the first ones, whichever were asked for."""
        states = np.stack([row.state for row in rows])
        if rows[0].sequence is None:
            first = self._api.llama_memory_seq_pos_max(self._memory, 0) + 1  # means nothing, but is checked
            positions = list(range(first, first + len(rows)))
            batch = self._batch.of(positions, [(0, 1)] * len(rows), True, states=states)
            self._handle.call(self._api.llama_encode, batch)
            states = self._last_states(len(rows))
        positions, tokens = [row.position for row in rows], [row.token for row in rows]
        batch = self._batch.of(positions, [self._ids(row) for row in rows], asked, tokens=tokens, states=states)
        self._handle.call(self._api.llama_decode, batch)
        if not asked:
            return None
        address = self._api.llama_get_logits(self._handle.pointer)
        return self._last_states(len(rows)), np.ctypeslib.as_array(address, shape=(len(rows), self._width))

    def _ids(self, row: Row) -> tuple[int, int]:
        """The first sequence id of a cell, and how many."""
        first = row.slot * self.n_paths
        return (first, self.n_paths) if row.sequence is None else (first + row.sequence, 1)

    def _last_states(self, rows: int) -> Float32Array:
        found = np.ctypeslib.as_array(self._states_address(self._handle.pointer), shape=(rows, self._n_embd))
        return np.array(found, dtype=np.float32)

    def _remove(self, slot: int, start: int) -> None:
        self._api.llama_memory_seq_rm(self._memory, -1 if self._n_slots == 1 else slot, start, -1)

    def _fork(self, slot: int, source: int, sequence: int, start: int, stop: int) -> None:
        first = slot * self.n_paths
        self._api.llama_memory_seq_cp(self._memory, first + source, first + sequence, start, stop)


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
        """Makes a drafter with a cache of its own; the weights are loaded once, and freed with the head."""
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
