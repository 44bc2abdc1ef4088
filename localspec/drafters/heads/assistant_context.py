"""An assistant of Gemma 4 as llama.cpp runs it: a few layers that read the cache of their target and write none.

A pass takes a token together with the state that led to it: after the target's last pass its state, after a guess the
assistant's own. All guesses of a draft stand at the position of the first, as the assistant was trained
(llama.cpp, common/speculative.cpp). So nothing of a draft needs to be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.drafters.heads.head_batch import HeadBatch
from localspec.errors import UsageError
from localspec.llama.cache.cells import common_prefix
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import NEXTN, NO_TAP, Tapped
from localspec.llama.library import lib
from localspec.llama.library.handle import Handle
from localspec.llama.library.parameters import context_parameters
from localspec.llama.model import Model
from localspec.types import Feed, Float32Array, LogitRows, Tokens


class AssistantContext:
    """A `drafters.draft_model.DraftContext` over the target's own cache."""

    def __init__(self, model: Model, target: Context) -> None:
        """llama.cpp empties the target's cache when it shares it.

        Args:
            model: the assistant; must stay open as long as this is used.
            target: keeps the states that an assistant starts from (`Tap(nextn=True)`); must stay open, too.

        Raises:
            UsageError: the target keeps no such states.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        if target.states is None or not target.states.tap.nextn:
            raise UsageError("An assistant needs a target that keeps the states it starts from.")
        self.n_ctx, self.n_vocab = target.n_ctx, min(model.n_vocab, target.n_vocab)
        self._target, self._tapped = target, Tapped(target.states, (NEXTN,))
        self._api, self._extension = lib.api(), lib.extension()
        self._width = int(self._api.llama_model_n_embd_out(model.handle))
        self._rows = model.n_vocab
        n_slots = target.settings.n_slots
        params = context_parameters(model, target.settings, target.threads, NO_TAP)
        params.ctx_type = self._api.LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = target.handle.pointer
        try:
            self._handle = Handle(model, params, f"a context for {model.path.name}")
        finally:
            for slot in range(n_slots):
                target.forget(slot)
        self._extension.llama_set_embeddings_nextn(self._handle.pointer, True, True)
        self._batch = HeadBatch(n_slots, n_slots)
        self._own: list[dict[int, tuple[Tokens, Float32Array]]] = [{} for _ in range(n_slots)]
        """For each slot, {length: (tokens of a path, the assistant's own state after the path)}."""

    def close(self) -> None:
        """Frees the context, and nothing of the target's cache. A second call does nothing."""
        self._handle.close()

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after the last token of every feed, each of another slot; all -inf where its states are not there.

        Raises:
            UsageError: an unknown slot.
            DecodeError: the pass failed.
        """
        starts = [self._start(feed.slot, feed.tokens) for feed in feeds]
        ready = [(feed, *start) for feed, start in zip(feeds, starts, strict=True) if start is not None]
        rows = np.full((len(feeds), self.n_vocab), -np.inf, dtype=np.float32)
        if ready:
            found = iter(self._pass(ready))
            for index, start in enumerate(starts):
                if start is not None:
                    rows[index] = next(found)
        return [LogitRows.from_matrix(rows[index : index + 1]) for index in range(len(feeds))]

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """There is nothing to read: the cache is the target's."""
        return len(tokens) - 1

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """All tokens but the last."""
        return len(tokens) - 1

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

    def _pass(self, ready: Sequence[tuple[Feed, int, Float32Array]]) -> Float32Array:
        """float32[n, n_vocab]: one pass, a row for each feed; keeps the states after them."""
        ordered = sorted(range(len(ready)), key=lambda index: ready[index][0].slot)
        feeds = [ready[index] for index in ordered]
        batch = self._batch.of(
            [position for _, position, _ in feeds],
            [(feed.slot, 1) for feed, _, _ in feeds],
            True,
            tokens=[int(feed.tokens[-1]) for feed, _, _ in feeds],
            states=np.stack([state for _, _, state in feeds]),
        )
        self._handle.call(self._api.llama_decode, batch)
        logits = self._view(self._api.llama_get_logits, len(feeds), self._rows)
        states = self._view(self._extension.llama_get_embeddings_nextn, len(feeds), self._width)
        found = np.empty((len(feeds), self.n_vocab), dtype=np.float32)
        for row, (index, (feed, _, _)) in enumerate(zip(ordered, feeds, strict=True)):
            self._own[feed.slot][len(feed.tokens)] = (feed.tokens.copy(), states[row].copy())
            found[index] = logits[row, : self.n_vocab]
        return found

    def _view(self, read: Any, rows: int, width: int) -> Float32Array:
        found: Float32Array = np.ctypeslib.as_array(read(self._handle.pointer), shape=(rows, width))
        return found
