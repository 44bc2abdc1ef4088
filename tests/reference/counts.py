"""Counts of what followed one to four tokens, with dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from localspec.native.indexes import NO_GUESS, TreeGuess
from localspec.native.library import MOST_FOLLOWED
from localspec.types import Float64Array, Noise, Purpose, Tokens
from tests.reference.numbers import exp, gumbel, log
from tests.reference.rows import COLD

_LONGEST, _LEAST_SAY, _HIGHEST, _KEPT = 4, 0.02, 0.999, 8
_LEAST = 0.03
"""After a guess that is less likely than this to be reached nothing more is guessed."""


class ContextCounts:
    """Every context and every sequel, however many."""

    def __init__(self) -> None:
        self._sequels: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def add(self, tokens: Tokens) -> None:
        self._count(tokens, 1)

    def remove(self, tokens: Tokens) -> None:
        self._count(tokens, -1)

    def _count(self, tokens: Tokens, times: int) -> None:
        ids = tokens.tolist()
        for at in range(1, len(ids)):
            for start in range(max(0, at - _LONGEST), at):
                self._sequels[tuple(ids[start:at])][ids[at]] += times

    def guess(
        self,
        tokens: Tokens,
        unchanged: int,
        temperature: float,
        noise: Noise,
        max_nodes: int,
        max_depth: int,
        breadth: int = 1,
        past: ContextCounts | None = None,
    ) -> TreeGuess:
        self._sequels.clear()
        self.add(tokens)

        def children(path: list[int]) -> list[tuple[int, float]]:
            shares = _mixed([self, past] if past else [self], [*tokens.tolist()[-_LONGEST:], *path])
            best = sorted(shares, key=lambda token: -shares[token])[:_KEPT]
            return _ranked(best, [shares[token] for token in best], temperature, noise, len(tokens) + len(path))

        tree = _grown(children, min(max_nodes, MOST_FOLLOWED), max_depth, breadth)
        return tree._replace(confidence=np.minimum(tree.confidence, np.float32(_HIGHEST)))

    def close(self) -> None:
        self._sequels.clear()


def _mixed(counts: list[ContextCounts], end: list[int]) -> dict[int, float]:
    """How likely each token is to follow, by the last four tokens, three, two and one (Witten and Bell), and of each
    length by the first of the counts before the second."""
    mixed: dict[int, float] = {}
    left = 1.0
    for length in range(min(_LONGEST, len(end)), 0, -1):
        if left <= _LEAST_SAY:
            break
        for one in counts:
            seen = {token: count for token, count in one._sequels.get(tuple(end[-length:]), {}).items() if count}
            met = sum(seen.values()) + len(seen)
            for token, count in seen.items():
                mixed[token] = mixed.get(token, 0.0) + left * count / met
            left *= len(seen) / met if met else 1.0
    return mixed


def _ranked(
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


def _grown(
    children: Callable[[list[int]], list[tuple[int, float]]], max_nodes: int, max_depth: int, breadth: int
) -> TreeGuess:
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
    return TreeGuess(
        np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32), np.array(chances, dtype=np.float32)
    )
