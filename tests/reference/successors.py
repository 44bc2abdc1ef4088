"""Token recycling with numpy: the likeliest tokens after each token, and guesses that go from token to token."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from localspec.errors import KernelError
from localspec.native.successors import MOST_NODES, NO_GUESS, SUCCESSORS, Guess
from localspec.types import NO_TOKENS, Float64Array, LogitRows, Noise, Purpose, SamplingParams, Tokens
from tests.reference.numbers import exp, gumbel, log
from tests.reference.rows import COLD, sample

_BEST = SamplingParams(temperature=0.0, top_k=32)
"""Finds the likeliest tokens of a row, and their shares of the 32 likeliest."""
_NO_NOISE = Noise(0)
_LEAST = 0.03
"""After a guess that is less likely than this to be reached nothing more is guessed."""


class SuccessorIndex:
    """A matrix with a row of tokens, and one of their shares, for each token of the vocabulary."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._tokens = np.zeros((0, SUCCESSORS), dtype=np.int32)
        self._shares = np.zeros((0, SUCCESSORS), dtype=np.float32)

    def learn(self, rows: LogitRows, indices: Sequence[int], tokens: Sequence[int]) -> None:
        if rows.n_vocab != len(self._tokens):
            self._tokens = np.zeros((rows.n_vocab, SUCCESSORS), dtype=np.int32)
            self._shares = np.zeros((rows.n_vocab, SUCCESSORS), dtype=np.float32)
        for index, token in zip(indices, tokens, strict=True):
            if not 0 <= token < rows.n_vocab:
                continue
            try:
                found, shares = sample(rows, index, _BEST, NO_TOKENS, _NO_NOISE, 0, SUCCESSORS)
            except KernelError:  # after a wrong guess, a row that was not read before
                continue
            self._tokens[token, : len(found)] = found
            self._shares[token] = 0.0
            self._shares[token, : len(found)] = shares

    def guess(
        self, token: int, temperature: float, noise: Noise, position: int, max_nodes: int, max_depth: int, breadth: int
    ) -> Guess:
        found: list[tuple[int, int, float]] = []
        waiting: list[tuple[float, int, int, int, int, float]] = []

        def open_children(token: int, parent: int, level: int, reach: float) -> None:
            tokens, chances = self._weighed(token, temperature, noise, position + level - 1)
            best = np.argsort(-chances, kind="stable")[:breadth].tolist()
            for rank, i in enumerate(best):
                chance = float(chances[i])
                heappush(waiting, (-(reach * chance), level, parent, rank, int(tokens[i]), chance))

        if max_depth:
            open_children(token, -1, 1, 1.0)
        while waiting and len(found) < min(max_nodes, MOST_NODES):
            reach, level, parent, _, taken, chance = heappop(waiting)
            found.append((taken, parent, chance))
            if level < max_depth and -reach >= _LEAST:
                open_children(taken, len(found) - 1, level + 1, -reach)
        if not found:
            return NO_GUESS
        tokens, parents, chances = zip(*found, strict=True)
        return Guess(
            np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32), np.array(chances, dtype=np.float32)
        )

    def _weighed(self, token: int, temperature: float, noise: Noise, position: int) -> tuple[Tokens, Float64Array]:
        """int32[n] tokens kept after a token, and how likely each is to be the target's own at that position, together
        as likely as all that is kept.

        With p its share, the target takes the largest log p / T + g, or log p + T g, where g is the noise there.
        """
        if not 0 <= token < len(self._tokens):
            return NO_TOKENS, np.empty(0)
        kept = int(np.count_nonzero(self._shares[token]))
        tokens, shares = self._tokens[token, :kept], self._shares[token, :kept].astype(np.float64)
        if temperature < COLD or not kept:
            return tokens, shares
        scores = log(shares) + temperature * gumbel(noise, Purpose.SAMPLE, position, tokens)
        weights = exp(scores - scores.max())
        chances: Float64Array = weights * (np.cumsum(shares)[-1] / np.cumsum(weights)[-1])
        return tokens, chances

    def memory_bytes(self) -> int:
        return self._tokens.nbytes + self._shares.nbytes
