"""Heads that guess a block in one pass, on a function from tokens to logits and small tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.drafters.heads.blocks import (
    BlockContext,
    BlockRows,
    LatticeRows,
    MarkovRows,
    Scaling,
)
from localspec.drafters.heads.head import BlockDrafter, DraftBlock
from localspec.types import Float32Array, Tokens
from tests.fakes import FakeDraftContext, HashModel

ROWS, CANDIDATES, RANK = 5, 3, 2
KINDS = ("dflash", "dflash2", "dspark")


class Table:
    """A matrix that is read as `llama.unpack.TensorRows` is."""

    def __init__(self, matrix: Float32Array) -> None:
        self.matrix = matrix
        self.rows, self.columns = matrix.shape

    def read(self, rows: slice | npt.NDArray[np.integer[Any]]) -> Float32Array:
        found: Float32Array = self.matrix[rows]
        return found


class FakeBlocks(FakeDraftContext):
    """Stands in for `blocks.DFlashContext`: rows depend on the history and their place in the block.

    As in llama.cpp, DSpark's rows come with the bias of what the row before likes best, and DFlash2's as candidates
    with what each is worth after each candidate of the row before. Rows of a pass are worthless after the next.
    """

    def __init__(self, size: int, kind: str, n_ctx: int = 256, sharpness: float = 0.6) -> None:
        super().__init__(HashModel(size, order=ROWS + 1, seed=8, sharpness=sharpness), n_ctx)
        rng = np.random.default_rng(2)
        self.kind = kind
        self.before, self.after = (rng.standard_normal((size, RANK)).astype(np.float32) for _ in range(2))
        self._given: list[Float32Array] = []

    def blocks(self, histories: Mapping[int, Tokens]) -> dict[int, DraftBlock]:
        for rows in self._given:
            rows.fill(np.nan)
        self._given.clear()
        self.passes.append(dict.fromkeys(histories, ROWS))
        return {slot: self._block(slot, tokens) for slot, tokens in histories.items()}

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int = 0) -> int:
        return super().prefill_chunk(slot, tokens, prompt_length)

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int = 0) -> int:
        return super().reusable(slot, tokens, prompt_length)

    def close(self) -> None:
        pass

    def bias(self, previous: int) -> Float32Array:
        found: Float32Array = self.after @ self.before[previous]
        return found

    def _block(self, slot: int, tokens: Tokens) -> DraftBlock:
        assert 1 <= len(tokens) <= self.n_ctx
        self.cached[slot] = tokens.tolist()
        masks = np.full(ROWS, self.n_vocab, dtype=np.int32)
        rows = np.stack([self.logits(np.concatenate([tokens, masks[:row]])) for row in range(ROWS)])
        if self.kind == "dflash2":
            self._given.append(self._lattice(rows, int(tokens[-1])))
            return DraftBlock(tokens.copy(), self._given[-1])
        if self.kind == "dspark":
            previous = int(tokens[-1])
            for row in rows:
                row += self.bias(previous)
                previous = int(row.argmax())
        self._given.append(rows)
        return DraftBlock(tokens.copy(), rows)

    def _lattice(self, rows: Float32Array, last: int) -> Float32Array:
        found, before = np.zeros((ROWS, 16), dtype=np.float32), [last] * CANDIDATES
        for row in range(1, ROWS):
            ids = np.argsort(rows[row])[-CANDIDATES:].tolist()
            found[row, :CANDIDATES] = ids
            scores = [[rows[row, token] + self.bias(previous)[token] for token in ids] for previous in before]
            found[row, CANDIDATES : CANDIDATES + CANDIDATES**2] = np.reshape(scores, -1)
            before = ids
        return found


def rows_of(blocks: FakeBlocks) -> BlockRows:
    """As `drafters.dflash` reads such blocks."""
    if blocks.kind == "dflash":
        return BlockRows(ROWS, Scaling())
    if blocks.kind == "dflash2":
        return LatticeRows(ROWS, CANDIDATES, blocks.n_vocab)
    before: Any = Table(blocks.before)
    after: Any = Table(blocks.after)
    return MarkovRows(ROWS, True, before, after, None, Scaling())


def block_drafter(
    size: int,
    kind: str,
    branches: int = 1,
    n_ctx: int = 256,
    end: frozenset[int] = frozenset(),
    sharpness: float = 0.6,
) -> BlockDrafter:
    """A drafter over such blocks."""
    blocks: Any = FakeBlocks(size, kind, n_ctx, sharpness)
    return BlockDrafter(BlockContext(blocks, rows_of(blocks), 8), end, branches, f"draft {kind}")
