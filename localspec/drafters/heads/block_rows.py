"""Logits of each guessed token from the rows of a block (`dflash_context.Block`), one class for each method.

A *level* is the number of tokens guessed before: level 0 follows the history. `previous` is the token before it, which
is the last one of the history at level 0 and a guess after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from localspec.drafters.heads.dflash_context import Block
from localspec.llama.library.unpack import TensorRows
from localspec.native import kernels
from localspec.types import Float32Array, LogitRows, Tokens

_REBIASED_TOKENS = 256
"""Tokens of a DSpark row whose bias is computed again after a guess that is not the row's own; other tokens are not
guessed. Chosen, not tuned: the bias of all tokens of a large vocabulary costs as much as a pass of the head."""


class BlockRows(Protocol):
    """Turns a block into logits, level by level."""

    levels: int
    """Number of tokens that a block guesses."""

    def row(self, block: Block, level: int, previous: int) -> Float32Array:
        """float32[vocabulary of the target]: logits of the token at a level, -inf for what it cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a model does to its logits at the end."""

    scale: float = 1.0
    """Factor of all logits."""
    cap: float = 0.0
    """Logits approach this number and never reach it; 0 = no limit."""

    def of(self, logits: Float32Array) -> Float32Array:
        """The logits of one row, scaled."""
        if self.scale != 1.0:
            logits = logits * np.float32(self.scale)
        if self.cap:
            logits = np.float32(self.cap) * np.tanh(logits / np.float32(self.cap))
        return logits


class IndependentRows:
    """DFlash: row 1 + level says what the token is, whatever the tokens before it turn out to be."""

    def __init__(self, rows: int, scaling: Scaling) -> None:
        """`rows`: of a block."""
        self.levels = rows - 1
        self._scaling = scaling

    def row(self, block: Block, level: int, previous: int) -> Float32Array:
        said: Float32Array = block.rows[1 + level]
        return self._scaling.of(said)


class MarkovRows:
    """DSpark: a row is the sum of what the context says and a bias for the token before.

    llama.cpp adds the bias of the tokens that each row likes best. For another token before it the one bias is taken
    away and the other added. `markov_w1` has a row for every token of the target, `markov_w2` one for every token that
    the head can guess.
    """

    def __init__(
        self,
        rows: int,
        from_anchor: bool,
        before: TensorRows,
        after: TensorRows,
        ids: npt.NDArray[np.int64] | None,
        scaling: Scaling,
    ) -> None:
        """
        Args:
            rows: of a block.
            from_anchor: whether the row of the last token guesses, too.
            before: `markov_w1`.
            after: `markov_w2`.
            ids: int64[rows of `after`], the tokens that the head can guess; None = all.
            scaling: of logits before the bias.
        """
        self._first = 0 if from_anchor else 1
        self.levels = rows - self._first
        self._before, self._after, self._scaling = before, after, scaling
        self._places = None
        if ids is not None:
            self._places = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
            self._places[ids] = np.arange(len(ids))

    def row(self, block: Block, level: int, previous: int) -> Float32Array:
        said: Float32Array = block.rows[self._first + level]
        assumed = self._assumed(block, level)
        if assumed == previous and self._scaling == Scaling():
            return said
        likeliest = _likeliest(said)
        wanted, taken = self._before.read(np.array([previous, assumed]))
        after = self._after.read(likeliest if self._places is None else self._places[likeliest])
        row = np.full(len(said), -np.inf, dtype=np.float32)
        row[likeliest] = self._scaling.of(said[likeliest] - after @ taken) + after @ wanted
        return row

    def _assumed(self, block: Block, level: int) -> int:
        """The token before, as llama.cpp took it: what the row before likes best."""
        return int(block.rows[self._first + level - 1].argmax()) if level else int(block.tokens[-1])


class LatticeRows:
    """DFlash2: each row names a few candidates, and what each is worth after each candidate of the row before."""

    def __init__(self, rows: int, candidates: int, n_vocab: int) -> None:
        """
        Args:
            rows: of a block.
            candidates: of a row.
            n_vocab: of the target.
        """
        self.levels = rows - 1
        self._count, self._n_vocab = candidates, n_vocab

    def row(self, block: Block, level: int, previous: int) -> Float32Array:
        count, said = self._count, block.rows[1 + level]
        found = np.full(self._n_vocab, -np.inf, dtype=np.float32)
        before = np.flatnonzero(self._ids(block, level) == previous) if level else np.zeros(1, dtype=np.int64)
        if len(before):
            scores = said[count : count + count * count].reshape(count, count)
            found[said[:count].astype(np.int64)] = scores[before[0]]
        return found

    def _ids(self, block: Block, row: int) -> npt.NDArray[np.int64]:
        """Candidates of a row."""
        return block.rows[row, : self._count].astype(np.int64)


def _likeliest(row: Float32Array) -> Tokens:
    """int32[at most `_REBIASED_TOKENS`]: the tokens of the highest logits, none of those that are -inf."""
    found, _ = kernels.top_log_probs(LogitRows.from_matrix(row[None, :]), 0, min(_REBIASED_TOKENS, len(row)))
    return found[np.isfinite(row[found])]
