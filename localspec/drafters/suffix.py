"""Suffix decoding: what followed, wherever the end of this conversation stood before, here or in past answers?

Unlike prompt lookup it finds the longest match, lets all its places vote, and looks beyond the conversation, into a
corpus that lasts. The guess that is expected to bring more is taken, the conversation's own of equals. Chains, or trees
(best first). Oliaro et al. 2024, "SuffixDecoding: a model-free approach to speeding up
large language model inference"; the index is native (`native/suffix.c`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Outcome
from localspec.kernels import Continuation, SuffixIndex
from localspec.types import Float32Array, Float64Array, Tokens

SHORTEST = 2
"""Tokens that must match; one alone is no evidence."""


class Corpus(Protocol):
    """Sequences beyond the conversation (`runtime.corpus`)."""

    def guess(self, context: Tokens, max_nodes: int, max_depth: int, *, tree: bool = False) -> Continuation:
        """What followed the longest end of `context`; see `kernels.SuffixIndex.guess`."""
        ...

    def used(self, sequence: int) -> None:
        """A guess from that sequence was right."""
        ...


@dataclass(slots=True)
class _Indexed:
    index: SuffixIndex
    history: History | None = None
    epoch: int = 0
    length: int = 0
    source: int = -1
    """Sequence of the corpus that the last guess is from; -1 = none."""


class SuffixDecoding:
    """One index per slot, a cache of that slot's history, and a corpus that all share."""

    name = "suffix"
    needs = NEEDS_NOTHING
    free = True

    def __init__(self, corpus: Corpus | None = None, trees: bool = False) -> None:
        """
        Args:
            corpus: is not closed with it.
            trees: guesses are trees, not chains.
        """
        self._corpus, self._trees = corpus, trees
        self._slots: dict[int, _Indexed] = {}

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(request) for request in requests]

    def _guess(self, request: DraftRequest) -> Draft:
        nodes, depth, history = request.max_nodes, request.max_depth, request.history.tokens
        tree = not request.chain and (self._trees or nodes > depth)
        seen = self._synced(request)
        seen.source = -1
        if min(nodes, depth) < 1:
            return EMPTY_DRAFT
        best = seen.index.guess(history, nodes, depth, tree=tree, runs_on=True)
        if self._corpus is not None and not request.needs_probs:  # else a text would depend on earlier ones
            other = self._corpus.guess(history, nodes, depth, tree=tree)
            if other.score > best.score:
                best, seen.source = other, other.sequence
        if best.match < SHORTEST:
            seen.source = -1
            return EMPTY_DRAFT
        return Draft(best.tokens, best.parents, None, _confidence(best.chances), self.name)

    def _synced(self, request: DraftRequest) -> _Indexed:
        history = request.history
        seen = self._slots.get(request.slot)
        if seen is None:
            seen = self._slots[request.slot] = _Indexed(SuffixIndex())
        same = seen.history is history and seen.epoch == history.epoch
        seen.index.sync(history.tokens, unchanged=seen.length if same else 0)
        seen.history, seen.epoch, seen.length = history, history.epoch, len(history)
        return seen

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        if self._corpus is None:
            return
        for outcome in outcomes:
            seen = self._slots.get(outcome.slot)
            if seen is not None and seen.source >= 0 and outcome.draft.origin == self.name:
                if len(outcome.verdict.accepted):
                    self._corpus.used(seen.source)
                seen.source = -1

    def close(self) -> None:
        for seen in self._slots.values():
            seen.index.close()
        self._slots.clear()


def _confidence(chances: Float64Array) -> Float32Array:
    """Chances below one half, odds above: of a match of m tokens with one sequel the odds are m."""
    scores = [chance if chance < 0.5 else chance / (1.0 - chance) for chance in chances.tolist()]
    return np.array(scores, dtype=np.float32)
