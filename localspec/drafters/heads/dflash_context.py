"""A head that guesses a block of tokens in one pass (DFlash, DFlash2, DSpark), as llama.cpp runs it.

Each layer of the head attends to *cells*: keys and values made from what layers of the target saw. Cell p is of
position p, and there is one for every token but the last. A block pass then reads the last token of a history and mask
tokens after it, each of which sees all cells and the whole block; its own cells are dropped after the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from localspec.drafters.heads.head_cache import HeadBatch
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import Tapped
from localspec.llama.library import lib
from localspec.llama.library.batch import common_prefix
from localspec.llama.library.handle import Handle
from localspec.llama.model import Model
from localspec.types import NO_TOKENS, Float32Array, Tokens

_READING_ROWS = 64
"""Rows of a pass that only fills the cache. llama.cpp allocates logits for so many rows."""
_CHUNK_TOKENS = 512
"""Most tokens that one `prefill_chunk` reads."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What the file of a head says about its block passes."""

    rows: int
    """Rows of a block: the last token and the masks. All passes have this width, on which a row's bits depend."""
    mask: int
    """The mask token."""
    causal: bool = False
    """Whether a row attends only to rows before it."""
    logits: bool = True
    """Whether passes return logits; otherwise they return states, which hold the candidates of DFlash2."""


@dataclass(frozen=True, slots=True)
class Block:
    """What one pass says about the tokens after a history; a view of llama.cpp's rows, valid until the next pass."""

    tokens: Tokens
    """int32[n], the history."""
    rows: Float32Array
    """float32[rows, n]: logits of the head's vocabulary, or the states of DFlash2."""


@dataclass(slots=True)
class _Trunk:
    """The cells of one slot."""

    tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[stop], the tokens before `start`, then one token for each cell."""
    start: int = 0
    """The first cell's position; above 0 if the target's states began there."""


class DFlashContext:
    """The cache of a head beside its target's. Every slot is a sequence of one unified cache."""

    def __init__(self, model: Model, target: Context, layers: Sequence[int], shape: BlockShape) -> None:
        """Allocates the cache.

        Args:
            model: the head, a `HeadModel`; must stay open as long as this is used.
            target: made with a tap of `layers`; must stay open, too.
            layers: whose inputs the head reads, in its own order.
            shape: of its blocks.
        """
        assert target.states is not None
        self.n_ctx, self.n_vocab = target.n_ctx, min(model.n_vocab, target.n_vocab)
        self.shape = shape
        self._api, self._extension = lib.api(), lib.extension()
        self._tapped, self._n_slots = Tapped(target.states, layers), target.settings.n_slots
        self._width, self._n_embd = model.n_vocab, int(self._api.llama_model_n_embd(model.handle))
        self._trunks = [_Trunk() for _ in range(self._n_slots)]
        capacity = max(_READING_ROWS, self._n_slots * shape.rows)
        self._handle = Handle(model, self._parameters(model, target, capacity), f"a context for {model.path.name}")
        self._memory = self._handle.memory
        self._api.llama_set_causal_attn(self._handle.pointer, shape.causal)
        if not shape.logits:
            self._extension.llama_set_embeddings_nextn(self._handle.pointer, True, False)
        by_sections = (int(self._api.LLAMA_ROPE_TYPE_MROPE), int(self._api.LLAMA_ROPE_TYPE_IMROPE))
        sections = int(self._api.llama_model_rope_type(model.handle)) in by_sections
        self._batch = HeadBatch(capacity, self._n_slots, sections)

    def _parameters(self, model: Model, target: Context, capacity: int) -> Any:
        params = self._api.llama_context_default_params()
        params.n_ctx = (self.n_ctx + self.shape.rows) * self._n_slots
        params.n_batch = params.n_ubatch = params.n_outputs_max = capacity
        params.n_seq_max = self._n_slots
        params.n_threads = params.n_threads_batch = target.threads
        params.kv_unified = True
        params.op_offload = model.gpu_layers != 0
        params.no_perf = True
        params.ctx_other = target.handle.pointer  # its embeddings and output matrix serve a head without its own
        return params

    def close(self) -> None:
        """Frees the cache. A second call does nothing."""
        self._handle.close()

    # -- cells --------------------------------------------------------------------------------------------------

    def reusable(self, slot: int, tokens: Tokens) -> int:
        """Tokens less those that must be read: one for each cell to make, at least the last one."""
        start, stop = self._tapped.span(slot, tokens)
        return len(tokens) - max(1, stop - max(self._kept(slot, tokens, start, stop), start))

    def prefill_chunk(self, slot: int, tokens: Tokens) -> int:
        """Makes up to 512 of the cells that are missing; how many tokens count as cached then (see `reusable`)."""
        start, stop = self._sync(slot, tokens)
        begin = max(len(self._trunks[slot].tokens), start)
        self._make(slot, tokens, begin, min(stop, begin + _CHUNK_TOKENS))
        return self.reusable(slot, tokens)

    def _kept(self, slot: int, tokens: Tokens, start: int, stop: int) -> int:
        """Where the cells end that can stay: those of the same tokens, if the new ones follow them without a gap."""
        trunk = self._trunks[slot]
        kept = min(common_prefix(trunk.tokens, tokens), stop)
        return kept if trunk.start < kept and trunk.start <= start <= kept else 0

    def _sync(self, slot: int, tokens: Tokens) -> tuple[int, int]:
        """Drops cells that do not serve `tokens`; returns the span."""
        start, stop = self._tapped.span(slot, tokens)
        kept, trunk = self._kept(slot, tokens, start, stop), self._trunks[slot]
        if kept < len(trunk.tokens) or not kept:
            self._remove(slot, kept)
            self._trunks[slot] = _Trunk(trunk.tokens[:kept], trunk.start) if kept else _Trunk(start=start)
        return start, stop

    def _make(self, slot: int, tokens: Tokens, start: int, stop: int) -> None:
        """Cells [start, stop), in passes without outputs."""
        for begin in range(start, stop, self._batch.capacity):
            end = min(begin + self._batch.capacity, stop)
            states = self._tapped.read(slot, begin, end)
            batch = self._batch.of(list(range(begin, end)), [(slot, 1)] * (end - begin), False, states=states)
            self._decode(batch, (slot,))
            self._trunks[slot].tokens = tokens[:end].copy()

    def _remove(self, slot: int, start: int) -> None:
        self._api.llama_memory_seq_rm(self._memory, slot, start, -1)

    def _decode(self, batch: Any, slots: Sequence[int]) -> None:
        try:
            self._handle.call(self._api.llama_decode, batch)
        except BaseException:
            for slot in slots:
                self._remove(slot, 0)
                self._trunks[slot] = _Trunk()
            raise

    # -- blocks -------------------------------------------------------------------------------------------------

    def blocks(self, histories: Mapping[int, Tokens]) -> dict[int, Block]:
        """One pass over a block for each slot.

        Args:
            histories: int32[n] by slot; the target has evaluated all but the last token.

        Returns:
            By slot; slots are left out for which the target's states are not there.
        """
        ready = [slot for slot in sorted(histories) if self._reach(slot, histories[slot])]
        if not ready:
            return {}
        rows = self.shape.rows
        tokens = np.full((len(ready), rows), self.shape.mask, dtype=np.int32)
        tokens[:, 0] = [histories[slot][-1] for slot in ready]
        positions = np.concatenate([np.arange(rows) + len(histories[slot]) - 1 for slot in ready]).astype(np.int32)
        ids = [(slot, 1) for slot in ready for _ in range(rows)]
        self._decode(self._batch.of(positions, ids, self.shape.logits, tokens=tokens.reshape(-1)), ready)
        for slot in ready:
            self._remove(slot, len(histories[slot]) - 1)
        read = self._api.llama_get_logits if self.shape.logits else self._extension.llama_get_embeddings_nextn
        width = self._width if self.shape.logits else self._n_embd
        found = np.ctypeslib.as_array(read(self._handle.pointer), shape=(len(ready), rows, width))
        if self.shape.logits:
            found = found[:, :, : self.n_vocab]
        return {slot: Block(histories[slot].copy(), found[index]) for index, slot in enumerate(ready)}

    def _reach(self, slot: int, tokens: Tokens) -> bool:
        """Makes what is missing of the cells before the last token; False if the target's states do not lead there."""
        start, stop = self._sync(slot, tokens)
        if start == stop or stop < len(tokens) - 1:
            return False
        self._make(slot, tokens, max(len(self._trunks[slot].tokens), start), stop)
        return True
