"""Heads that guess a whole block of tokens in one pass, from what layers of the target saw.

DFlash (Chen, Liang, Liu 2026, arXiv 2602.06036) guesses each token by itself; DSpark adds a bias for the token before,
and DFlash2 a choice among a few candidates. A draft is drawn level by level from the rows of one pass, with the
request's own noise, so that a bias or a choice follows the token that was drawn. Files are GGUF of llama.cpp's
architecture `dflash`, as its own conversion writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.drafters.heads import dflash_file
from localspec.drafters.heads.block_rows import BlockRows, IndependentRows, LatticeRows, MarkovRows
from localspec.drafters.heads.dflash_context import Block, DFlashContext
from localspec.drafters.heads.dflash_file import DFlashFile
from localspec.drafters.heads.head import Weights
from localspec.drafters.heads.head_model import HeadModel
from localspec.drafters.models.best_first import BestFirst
from localspec.drafters.models.draft_model import DraftModelSettings
from localspec.engine.interfaces import Draft, DraftRequest
from localspec.gguf import Header
from localspec.llama.cache.cells import common_prefix
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import Tap
from localspec.llama.library.unpack import TensorRows
from localspec.types import Feed, Float32Array, LogitRows, Tokens


def load(path: Path, target: Header) -> DFlashHead:
    """Reads the header of a head and compares it with its target's.

    Args:
        path: a GGUF file of the architecture `dflash`.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: damaged, or without something that it needs.
        PairError: no such head, or made for another model.
    """
    return DFlashHead(dflash_file.read(path, target))


class DFlashHead:
    """One file for one target; see `drafters.head.Head`."""

    def __init__(self, file: DFlashFile) -> None:
        self.name, self.path, self.file = file.kind, file.header.path, file
        self.tap = Tap(tuple(sorted(set(file.layers))))
        self._weights = Weights(self.path, HeadModel)

    def attach(self, target: Context, branches: int) -> BlockDrafter:
        """Makes a drafter with a cache of its own; the weights are loaded once, and freed with the head.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        model = self._weights.beside(target.model)
        context = DFlashContext(model, target, self.file.layers, self.file.shape)
        reading = BlockContext(context, _rows(self.file, context.n_vocab), target.max_leaves)
        return BlockDrafter(reading, target.model.end_tokens, DraftModelSettings(branches), self.name)

    def close(self) -> None:
        self._weights.close()


def _rows(file: DFlashFile, n_vocab: int) -> BlockRows:
    """The reader of rows for this kind of head."""
    rows = file.shape.rows
    if file.kind == "dflash":
        return IndependentRows(rows, file.scaling)
    if file.kind == "dflash2":
        return LatticeRows(rows, file.candidates, n_vocab)
    found = {tensor.name: tensor for tensor in file.header.tensors}
    before, after = (TensorRows(file.header, found[f"markov_{table}.weight"]) for table in ("w1", "w2"))
    return MarkovRows(rows, file.from_anchor, before, after, file.ids, file.scaling)


class BlockContext:
    """A `TreeContext` whose rows, whichever paths they follow, come from one pass after each history."""

    def __init__(self, context: DFlashContext, rows: BlockRows, n_paths: int) -> None:
        """
        Args:
            context: runs the head; closed with this.
            rows: reads its blocks.
            n_paths: most paths of a slot that go different ways.
        """
        self.n_ctx, self.n_vocab, self.n_paths = context.n_ctx, context.n_vocab, n_paths
        self._context, self._rows = context, rows
        self._blocks: dict[int, Block] = {}
        """{slot: the block of its last pass}; rows are valid until the next pass."""

    def begin(self) -> None:
        """A draft begins: the next feed of each slot is its history."""
        self._blocks.clear()

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after the last token of every feed; all -inf where the head has nothing to say.

        Raises:
            DecodeError: a pass failed; the slots' caches are empty.
        """
        histories = {feed.slot: feed.tokens for feed in feeds if self._level(feed) is None}
        if histories:
            known = {slot: block.tokens for slot, block in self._blocks.items()}
            self._blocks = self._context.blocks(known | histories)
        return [LogitRows.from_matrix(self._row(feed)[None, :]) for feed in feeds]

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """One step towards a cache of all tokens but the last."""
        self._blocks.clear()
        return self._context.prefill_chunk(slot, tokens)

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Number of leading tokens that are cached."""
        return self._context.reusable(slot, tokens)

    def close(self) -> None:
        """Frees the cache. A second call does nothing."""
        self._blocks.clear()
        self._context.close()

    def _level(self, feed: Feed) -> int | None:
        """Tokens guessed so far; None where there is no block of the feed's history."""
        block = self._blocks.get(feed.slot)
        if block is None or common_prefix(block.tokens, feed.tokens) < len(block.tokens):
            return None
        return len(feed.tokens) - len(block.tokens)

    def _row(self, feed: Feed) -> Float32Array:
        block, level = self._blocks.get(feed.slot), self._level(feed)
        if block is None or level is None or level >= self._rows.levels:
            return np.full(self.n_vocab, -np.inf, dtype=np.float32)
        return self._rows.row(block, level, int(feed.tokens[-1]))


class BlockDrafter(BestFirst):
    """Draws chains and trees from the rows that one pass computes."""

    one_pass = True
    """The plan takes the first level to cost all and the others nothing (`planning.asking`)."""

    def __init__(
        self, context: BlockContext, end_tokens: frozenset[int], settings: DraftModelSettings, name: str
    ) -> None:
        super().__init__(context, end_tokens, settings, name, context.close)
        self._block = context

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._block.begin()
        return super().draft(requests)
