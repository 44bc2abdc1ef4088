"""Counts of what followed one to four tokens, with dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from localspec.native.guess import Guess
from localspec.native.successors import MOST_NODES, SUCCESSORS
from localspec.types import Noise, Tokens
from tests.reference.successors import grown, ranked

_LONGEST, _OWN_TIMES, _LEAST_SAY, _HIGHEST = 4, 10.0, 0.02, 0.999


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
    ) -> Guess:
        self._sequels.clear()
        self.add(tokens)

        def children(path: list[int]) -> list[tuple[int, float]]:
            shares = _mixed([self, past] if past else [self], [*tokens.tolist()[-_LONGEST:], *path])
            best = sorted(shares, key=lambda token: -shares[token])[:SUCCESSORS]
            return ranked(best, [shares[token] for token in best], temperature, noise, len(tokens) + len(path))

        tree = grown(children, min(max_nodes, MOST_NODES), max_depth, breadth)
        return tree._replace(confidence=np.minimum(tree.confidence, np.float32(_HIGHEST)))

    def close(self) -> None:
        self._sequels.clear()


def _mixed(counts: list[ContextCounts], end: list[int]) -> dict[int, float]:
    """How likely each token is to follow, by the last four tokens, three, two and one (Witten and Bell)."""
    mixed: dict[int, float] = {}
    left = 1.0
    for length in range(min(_LONGEST, len(end)), 0, -1):
        seen: dict[int, float] = {}
        for one, times in zip(counts, (_OWN_TIMES, 1.0), strict=False):
            for token, count in one._sequels.get(tuple(end[-length:]), {}).items():
                if count:
                    seen[token] = seen.get(token, 0.0) + times * count
        met = sum(seen.values())
        if left <= _LEAST_SAY or not met:
            continue
        for token, says in seen.items():
            mixed[token] = mixed.get(token, 0.0) + left * says / (met + len(seen))
        left *= len(seen) / (met + len(seen))
    return mixed
