"""Suffix decoding: what followed, wherever the end of this conversation stood before, here or in past answers?

Unlike prompt lookup it finds the longest match, lets all its places vote, and looks beyond the conversation, into a
corpus that lasts. The guess that is expected to bring more is taken, the conversation's own of equals. Chains, or trees
(best first). Oliaro et al. 2024, "SuffixDecoding: a model-free approach to speeding up
large language model inference"; the index is native (`native/suffix.c`).
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.drafters.search.conversations import Conversations
from localspec.drafters.setup import Corpus, Setup
from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Outcome
from localspec.native.indexes import LONGEST

SHORTEST_MATCH = 2
"""Fewest tokens that must match: a match of one token is no evidence."""
PAST_MATCH = LONGEST + 1
"""Fewest tokens that must match in past answers: what they say after fewer is counted (`habits`), and counts of all
places promise more than the places of the longest match."""


class SuffixDecoding:
    """Searches each slot's conversation, and a corpus that all share."""

    name = "suffix"
    needs = NEEDS_NOTHING
    free = True

    def __init__(
        self, corpus: Corpus | None = None, trees: bool = False, conversations: Conversations | None = None
    ) -> None:
        """
        Args:
            corpus: is not closed with it.
            trees: guesses are trees, not chains.
            conversations: those that other drafters search, too.
        """
        self._corpus, self._trees = corpus, trees
        self._conversations = conversations or Conversations()
        self._sources: dict[int, int] = {}
        """By slot, number of the corpus sequence that the last guess came from."""

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(request) for request in requests]

    def _guess(self, request: DraftRequest) -> Draft:
        nodes, depth, tokens = request.max_nodes, request.max_depth, request.history.tokens
        tree = not request.chain and (self._trees or nodes > depth)
        seen = self._conversations.of(request)
        # With a corpus a text drawn by *rejection* or *block* would depend on earlier ones.
        searched = request.asked.recall and not request.needs_probs
        borrowed = self._corpus.borrow() if self._corpus is not None and searched else None
        other = borrowed[0] if borrowed else None
        try:
            found = seen.index.follow(
                tokens, seen.length, max(0, nodes), max(0, depth), tree=tree, other=other, least=PAST_MATCH
            )
        finally:
            if borrowed is not None and self._corpus is not None:
                self._corpus.give_back()
        seen.length = len(request.history)
        self._sources.pop(request.slot, None)
        if found.match < SHORTEST_MATCH:
            return EMPTY_DRAFT
        if found.sequence >= 0:
            self._sources[request.slot] = found.sequence
        return Draft(found.tokens, found.parents, None, found.confidence, self.name)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            source, draft = self._sources.pop(outcome.slot, None), outcome.draft
            if source is None or self._corpus is None:
                continue
            if any(draft.origin_of(node) == self.name for node in outcome.verdict.accepted.tolist()):
                self._corpus.used(source)

    def close(self) -> None:
        self._conversations.close()


def make(setup: Setup) -> SuffixDecoding:
    """The drafter as settings have it."""
    return SuffixDecoding(setup.corpus, setup.settings.branches > 1, setup.conversations)
