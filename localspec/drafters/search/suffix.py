"""Drafters that search the conversation and past answers: suffix decoding and habits. Both draw chains, or trees.

Suffix decoding asks what followed, wherever the end of this conversation stood before. Unlike prompt lookup it finds
the longest match, lets all its places vote, and looks beyond the conversation, into a corpus that lasts. The guess that
is expected to bring more is taken, the conversation's own of equals. Oliaro et al. 2024, "SuffixDecoding: a model-free
approach to speeding up large language model inference"; the index is native (`native/suffix.c`).

Habits are what this model says after its last few tokens. What followed the last one to four tokens is counted, in the
conversation and in the model's own past answers, and the counts of all lengths are mixed (`native/counts.c`). So a
guess needs no long match. Under a temperature the target's own noise ranks the guesses, as the target will rank them
(*coupled*).
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.drafters.setup import Conversations, Corpus, FreeDrafter, Setup
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, Outcome
from localspec.errors import UsageError
from localspec.native.indexes import LONGEST

SHORTEST_MATCH = 2
"""Fewest tokens that must match: a match of one token is no evidence."""
PAST_MATCH = LONGEST + 1
"""Fewest tokens that must match in past answers: what they say after fewer is counted (`Habits`), and counts of all
places promise more than the places of the longest match."""


class SuffixDecoding(FreeDrafter):
    """Searches each slot's conversation, and a corpus that all share."""

    name = "suffix"

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
    return SuffixDecoding(setup.corpus, setup.settings.branches > 1, setup.conversations)


_BREADTH = 8
"""Most guesses after a token, of a tree."""


class Habits(FreeDrafter):
    """Counts in each slot's conversation, and in answers that all share; keeps nothing of its own."""

    name = "habits"

    def __init__(
        self, corpus: Corpus | None = None, branches: int = 1, conversations: Conversations | None = None
    ) -> None:
        """
        Args:
            corpus: is not closed with it.
            branches: most guesses after a token: 1 drafts a chain, 2 or more a tree, best first.
            conversations: those that other drafters search, too.

        Raises:
            UsageError: no such number of branches.
        """
        if not 1 <= branches <= _BREADTH:
            raise UsageError(f"branches is {branches}; it must be between 1 and {_BREADTH}.")
        self._corpus, self._branches = corpus, branches
        self._conversations = conversations or Conversations()

    def _guess(self, request: DraftRequest) -> Draft:
        tokens = request.history.tokens
        if request.needs_probs or not len(tokens):  # else a text would depend on earlier ones
            return EMPTY_DRAFT
        seen = self._conversations.of(request)
        borrowed = self._corpus.borrow() if self._corpus is not None and request.asked.recall else None
        try:
            found = seen.counts.guess(
                tokens,
                seen.counted,
                request.asked.sampling.temperature,
                request.noise,
                max(0, request.max_nodes),
                max(0, request.max_depth),
                1 if request.chain else _BREADTH if request.max_nodes > request.max_depth else self._branches,
                borrowed[1] if borrowed else None,
            )
        finally:
            if borrowed is not None and self._corpus is not None:
                self._corpus.give_back()
        seen.counted = len(tokens)
        if not len(found.tokens):
            return EMPTY_DRAFT
        return Draft(found.tokens, found.parents, None, found.confidence, self.name)

    def close(self) -> None:
        self._conversations.close()


def make_habits(setup: Setup) -> Habits:
    return Habits(setup.corpus, setup.settings.branches, setup.conversations)
