"""An EAGLE-3 head as llama.cpp runs it: an encoder that fuses what layers of the target saw, and one decoder layer.

Sequences are llama.cpp's: the trunk carries all of a slot's, a guess the one of its path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localspec.drafters.heads.head_batch import HeadBatch
from localspec.drafters.heads.head_cache import MOST_PASS_ROWS, HeadCache, Row
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import NEXTN
from localspec.llama.library import lib
from localspec.llama.library.handle import Handle
from localspec.llama.model import Model
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

        Raises:
            ModelError: llama.cpp refuses it, or there is no memory.
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
