"""Suffix decoding: what followed, wherever the end of this conversation stood before, here or in past answers?

Unlike prompt lookup it finds the longest match, lets all its places vote, and looks beyond the conversation, into a
corpus that lasts. The guess that is expected to bring more is taken, the conversation's own of equals. Chains, or trees
(best first). Oliaro et al. 2024, "SuffixDecoding: a model-free approach to speeding up
large language model inference"; the index is native (`native/suffix.c`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.drafters.setup import Corpus, Setup
from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Outcome
from localspec.native.suffix import SuffixIndex

SHORTEST_MATCH = 2
"""Fewest tokens that must match: a match of one token is no evidence."""


@dataclass(slots=True)
class _Indexed:
    index: SuffixIndex
    history: History | None = None
    epoch: int = 0
    length: int = 0
    source: int = -1
    """Number of the corpus sequence that the last guess came from; -1 = none."""


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
        nodes, depth = request.max_nodes, request.max_depth
        tree = not request.chain and (self._trees or nodes > depth)
        seen = self._known(request)
        draft, seen.source = self._follow(seen, request, nodes, depth, tree)
        return draft

    def _known(self, request: DraftRequest) -> _Indexed:
        """The slot's index, which may be shorter than the history."""
        history = request.history
        seen = self._slots.get(request.slot)
        if seen is None:
            seen = self._slots[request.slot] = _Indexed(SuffixIndex())
        if seen.history is not history or seen.epoch != history.epoch:
            seen.history, seen.epoch, seen.length = history, history.epoch, 0
        return seen

    def _follow(self, seen: _Indexed, request: DraftRequest, nodes: int, depth: int, tree: bool) -> tuple[Draft, int]:
        """What follows the history, and the sequence of the corpus it is from."""
        tokens = request.history.tokens
        # With a corpus a text drawn by *rejection* or *block* would depend on earlier ones.
        searched = request.asked.past and not request.needs_probs
        other = self._corpus.borrow() if self._corpus is not None and searched else None
        try:
            found = seen.index.follow(tokens, seen.length, max(0, nodes), max(0, depth), tree=tree, other=other)
        finally:
            if other is not None and self._corpus is not None:
                self._corpus.give_back()
        seen.length = len(request.history)
        if found.match < SHORTEST_MATCH:
            return EMPTY_DRAFT, -1
        past = found.sequence >= 0
        draft = Draft(found.tokens, found.parents, None, found.confidence, self.name, past=past)
        return draft, found.sequence

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        if self._corpus is None:
            return
        for outcome in outcomes:
            seen, draft = self._slots.get(outcome.slot), outcome.draft
            if seen is None:
                continue
            right = [draft.origin_of(node) == self.name for node in outcome.verdict.accepted.tolist()]
            if any(right) and seen.source >= 0:
                self._corpus.used(seen.source)
            seen.source = -1

    def close(self) -> None:
        for seen in self._slots.values():
            seen.index.close()
        self._slots.clear()


def make(setup: Setup) -> SuffixDecoding:
    """The drafter as settings have it."""
    return SuffixDecoding(setup.corpus, trees=setup.settings.branches > 1)
