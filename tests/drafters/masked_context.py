"""A model with a mask token, on a function from tokens to logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.types import Feed, Float32Array, LogitRows
from tests.fakes import FakeDraftContext, LogitsOf


class MaskedContext(FakeDraftContext):
    """One that takes masks behind a history; `fed` is what every pass was given."""

    def __init__(self, logits: LogitsOf, mask: int, n_ctx: int = 256) -> None:
        """`mask`: the last token `logits` knows, which is not in the vocabulary."""
        super().__init__(logits, n_ctx)
        self.mask = self.n_vocab = mask
        self.fed: list[dict[int, tuple[int, int]]] = []
        """Per pass, by slot: (tokens of the history that were computed, masks)."""
        self._blocks: list[Float32Array] = []

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        for block in self._blocks:
            block.fill(np.nan)
        self._blocks.clear()
        fed = {}
        for feed in feeds:
            masks = len(feed.draft_tokens)
            assert (feed.draft_tokens == self.mask).all()
            assert feed.draft_parents.tolist() == list(range(-1, masks - 1))
            assert len(feed.tokens) + masks <= self.n_ctx
            fed[feed.slot] = (len(feed.tokens) - self.reusable(feed.slot, feed.tokens, len(feed.tokens)), masks)
            everything = np.concatenate([feed.tokens, feed.draft_tokens])
            self.cached[feed.slot] = everything.tolist()
            ends = range(len(feed.tokens), len(everything) + 1)
            self._blocks.append(np.stack([self.logits(everything[:end]) for end in ends]))
        self.fed.append(fed)
        return [self._rows(block) for block in self._blocks]

    def _rows(self, block: Float32Array) -> LogitRows:
        rows = LogitRows.from_matrix(block)
        return LogitRows(rows.pointers, self.n_vocab, rows)
