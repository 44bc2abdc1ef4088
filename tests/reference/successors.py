"""Token recycling with numpy: the likeliest tokens after each token, and guesses that go from token to token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from localspec.errors import KernelError
from localspec.native.guess import NO_GUESS, Guess
from localspec.native.successors import MOST_NODES, SUCCESSORS
from localspec.types import NO_TOKENS, Float64Array, LogitRows, Noise, Purpose, SamplingParams
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
        def children(path: list[int]) -> list[tuple[int, float]]:
            last = path[-1] if path else token
            if not 0 <= last < len(self._tokens):
                return []
            kept = int(np.count_nonzero(self._shares[last]))
            tokens, shares = self._tokens[last, :kept].tolist(), self._shares[last, :kept].tolist()
            return ranked(tokens, shares, temperature, noise, position + len(path))

        return grown(children, min(max_nodes, MOST_NODES), max_depth, breadth)

    def memory_bytes(self) -> int:
        return self._tokens.nbytes + self._shares.nbytes


def ranked(
    tokens: list[int], shares: list[float], temperature: float, noise: Noise, position: int
) -> list[tuple[int, float]]:
    """(token, how likely it is to be the target's own at that position), best first, together as likely as the shares.

    With p its share, the target takes the largest log p / T + g, or log p + T g, where g is the noise there.
    """
    chances: Float64Array = np.array(shares, dtype=np.float32).astype(np.float64)
    if temperature >= COLD and tokens:
        noisy = log(chances) + temperature * gumbel(noise, Purpose.SAMPLE, position, np.array(tokens, dtype=np.int32))
        weights = exp(noisy - noisy.max())
        chances = weights * (np.cumsum(chances)[-1] / np.cumsum(weights)[-1])
    return [(tokens[i], float(chances[i])) for i in np.argsort(-chances, kind="stable").tolist()]


def grown(
    children: Callable[[list[int]], list[tuple[int, float]]], max_nodes: int, max_depth: int, breadth: int
) -> Guess:
    """A tree, the next node always the one that is likeliest to be reached; `children` of a path, best first."""
    found: list[tuple[int, int, float]] = []
    waiting: list[tuple[float, int, int, int, int, float, list[int]]] = []

    def open_children(path: list[int], parent: int, reach: float) -> None:
        for rank, (token, chance) in enumerate(children(path)[:breadth]):
            heappush(waiting, (-(reach * chance), len(path), parent, rank, token, chance, [*path, token]))

    if max_depth:
        open_children([], -1, 1.0)
    while waiting and len(found) < max_nodes:
        reach, _, parent, _, token, chance, path = heappop(waiting)
        found.append((token, parent, chance))
        if len(path) < max_depth and -reach >= _LEAST:
            open_children(path, len(found) - 1, -reach)
    if not found:
        return NO_GUESS
    tokens, parents, chances = zip(*found, strict=True)
    return Guess(
        np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32), np.array(chances, dtype=np.float32)
    )
