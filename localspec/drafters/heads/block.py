"""Heads that guess a whole draft in one pass: the rows of a block, and the cache of those that read what layers of the
target saw (DFlash, DFlash2, DSpark), as llama.cpp runs it.

Each layer of such a head attends to *cells*: keys and values made from what layers of the target saw. Cell p is of
position p, and there is one for every token but the last. A block pass then reads the last token of a history and mask
tokens after it, each of which sees all cells and the whole block; its own cells are dropped after the pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from localspec.drafters.heads.head_cache import HeadBatch, HeadPasses, own_cache
from localspec.drafters.models.draft_model import BestFirst
from localspec.engine.interfaces import Draft, DraftRequest
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import Tapped
from localspec.llama.library import lib
from localspec.llama.library.batch import common_prefix
from localspec.llama.model import Model
from localspec.types import NO_TOKENS, Feed, LogitRows, Tokens

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
class DraftBlock:
    """What one pass says about the tokens after a history; valid until the next pass."""

    tokens: Tokens
    """int32[n], the history."""
    rows: Any
    """float32[rows, n], logits of the head's vocabulary or the states of DFlash2; of PARD the LogitRows by level."""


class OnePassContext(ABC):
    """A `TreeContext` whose rows, whichever paths they follow, come from one pass after each history.

    A *level* is the number of tokens guessed before: level 0 follows the history.
    """

    def __init__(self, context: Any, n_paths: int) -> None:
        """`context` runs the head, for at most `n_paths` paths of a slot that go different ways."""
        self._context: Any = context
        self.n_ctx, self.n_vocab, self.n_paths = context.n_ctx, context.n_vocab, n_paths
        self._ends: Mapping[int, int] = {}
        self._blocks: dict[int, DraftBlock] = {}
        """{slot: the block of its last pass}."""

    def begin(self, ends: Mapping[int, int] | None = None) -> None:
        """A draft begins: the next feed of each slot is its history. `ends`: by slot, the length that history and draft
        may reach together."""
        self._ends = ends or {}
        self._blocks.clear()

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after the last token of every feed; all -inf where the head has nothing to say."""
        if new := [feed for feed in feeds if self._level(feed) is None]:
            self._blocks = self._compute(feeds, new)
        rows = [None if (level := self._level(feed)) is None else self._row(feed, level) for feed in feeds]
        nothing = np.full((1, self.n_vocab if None in rows else 0), -np.inf, dtype=np.float32)
        return [LogitRows.from_matrix(nothing) if one is None else one for one in rows]

    def _level(self, feed: Feed) -> int | None:
        """Tokens guessed so far; None where there is no block of the feed's history."""
        block = self._blocks.get(feed.slot)
        if block is None or common_prefix(block.tokens, feed.tokens) < len(block.tokens):
            return None
        return len(feed.tokens) - len(block.tokens)

    @abstractmethod
    def _compute(self, feeds: Sequence[Feed], new: Sequence[Feed]) -> dict[int, DraftBlock]:
        """One pass for `feeds`, of which `new` have no block yet."""

    @abstractmethod
    def _row(self, feed: Feed, level: int) -> LogitRows | None:
        """The row of a level of the slot's block; None = the block says nothing of it."""

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """One step towards a cache of all tokens but the last."""
        self._blocks.clear()
        done: int = self._context.prefill_chunk(slot, tokens, prompt_length)
        return done

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Number of leading tokens that are cached."""
        cached: int = self._context.reusable(slot, tokens, prompt_length)
        return cached

    def close(self) -> None:
        """Frees what is its own. A second call does nothing."""
        self._blocks.clear()


class BlockDrafter(BestFirst):
    """Draws chains and trees from the rows that one pass computes."""

    one_pass = True
    """The plan takes the first level to cost all and the others nothing (`planning.passes`)."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if isinstance(self._context, OnePassContext):  # None once it is closed
            branches = self.settings.branches
            levels = [min(one.max_depth, -(-one.max_nodes // branches)) for one in requests]
            ends = {one.slot: len(one.history) + level for one, level in zip(requests, levels, strict=True)}
            self._context.begin(ends)
        return super().draft(requests)


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
        """Beside a target that has a tap of `layers`, whose inputs the head reads in this order. Both models must
        stay open."""
        assert target.states is not None
        self.n_ctx, self.n_vocab = target.n_ctx, min(model.n_vocab, target.n_vocab)
        self.shape, api, slots = shape, lib.api(), target.settings.n_slots
        self._tapped = Tapped(target.states, layers)
        self._trunks = [_Trunk() for _ in range(slots)]
        capacity = max(_READING_ROWS, slots * shape.rows)
        by_sections = (int(api.LLAMA_ROPE_TYPE_MROPE), int(api.LLAMA_ROPE_TYPE_IMROPE))
        sections = int(api.llama_model_rope_type(model.handle)) in by_sections
        self._passes = HeadPasses(
            model,
            own_cache(model, target, shape.rows, capacity),
            HeadBatch(capacity, slots, sections),
            int(api.llama_model_n_embd(model.handle)),
            states="none" if shape.logits else "all",
        )
        api.llama_set_causal_attn(self._passes.handle.pointer, shape.causal)

    def close(self) -> None:
        """Frees the cache. A second call does nothing."""
        self._passes.handle.close()

    # -- cells --------------------------------------------------------------------------------------------------

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int = 0) -> int:
        """Tokens less those that must be read: one for each cell to make, at least the last one."""
        start, stop = self._tapped.span(slot, tokens)
        return len(tokens) - max(1, stop - max(self._kept(slot, tokens, start, stop), start))

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int = 0) -> int:
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
            self._passes.remove(slot, kept)
            self._trunks[slot] = _Trunk(trunk.tokens[:kept], trunk.start) if kept else _Trunk(start=start)
        return start, stop

    def _make(self, slot: int, tokens: Tokens, start: int, stop: int) -> None:
        """Cells [start, stop), in passes without outputs."""
        batch = self._passes.batch
        for begin in range(start, stop, batch.capacity):
            end = min(begin + batch.capacity, stop)
            states = self._tapped.read(slot, begin, end)
            self._decode(batch.of(range(begin, end), [(slot, 1)] * (end - begin), False, states=states), (slot,))
            self._trunks[slot].tokens = tokens[:end].copy()

    def _decode(self, batch: Any, slots: Sequence[int]) -> None:
        try:
            self._passes.decode(batch)
        except BaseException:
            for slot in slots:
                self._passes.remove(slot, 0)
                self._trunks[slot] = _Trunk()
            raise

    # -- blocks -------------------------------------------------------------------------------------------------

    def blocks(self, histories: Mapping[int, Tokens]) -> dict[int, DraftBlock]:
        """One pass over a block for each slot, after int32[n] tokens of which the target has evaluated all but the
        last. Slots are left out for which the target's states are not there."""
        ready = [slot for slot in sorted(histories) if self._reach(slot, histories[slot])]
        if not ready:
            return {}
        rows = self.shape.rows
        tokens = np.full((len(ready), rows), self.shape.mask, dtype=np.int32)
        tokens[:, 0] = [histories[slot][-1] for slot in ready]
        positions = np.concatenate([np.arange(rows) + len(histories[slot]) - 1 for slot in ready]).astype(np.int32)
        ids = [(slot, 1) for slot in ready for _ in range(rows)]
        batch = self._passes.batch.of(positions, ids, self.shape.logits, tokens=tokens.reshape(-1))
        self._decode(batch, ready)
        for slot in ready:
            self._passes.remove(slot, len(histories[slot]) - 1)
        if self.shape.logits:
            found = self._passes.logits(len(ids)).reshape(len(ready), rows, -1)[:, :, : self.n_vocab]
        else:
            found = self._passes.states(len(ids)).reshape(len(ready), rows, -1)
        return {slot: DraftBlock(histories[slot].copy(), found[index]) for index, slot in enumerate(ready)}

    def _reach(self, slot: int, tokens: Tokens) -> bool:
        """Makes what is missing of the cells before the last token; False if the target's states do not lead there."""
        start, stop = self._sync(slot, tokens)
        if start == stop or stop < len(tokens) - 1:
            return False
        self._make(slot, tokens, max(len(self._trunks[slot].tokens), start), stop)
        return True
