"""Habits: what does this model say after its last few tokens?

Counts what followed the last one to four tokens, in the conversation and in the model's own past answers, and mixes the
counts of all lengths (`native/counts.c`). So a guess needs no long match: it is what this model says often, in any
text. Under a temperature the target's own noise ranks the guesses, as the target will rank them (*coupled*).
Chains, or trees (best first).
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.drafters.search.conversations import Conversations
from localspec.drafters.setup import Corpus, Setup
from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    NEEDS_NOTHING,
    Draft,
    DraftRequest,
    History,
    Outcome,
)
from localspec.errors import UsageError

_BREADTH = 8
"""Most guesses after a token, of a tree."""


class Habits:
    """Counts in each slot's conversation, and in answers that all share; keeps nothing of its own."""

    name = "habits"
    needs = NEEDS_NOTHING
    free = True

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

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(request) for request in requests]

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
                self._breadth(request),
                borrowed[1] if borrowed else None,
            )
        finally:
            if borrowed is not None and self._corpus is not None:
                self._corpus.give_back()
        seen.counted = len(tokens)
        if not len(found.tokens):
            return EMPTY_DRAFT
        return Draft(found.tokens, found.parents, None, found.confidence, self.name)

    def _breadth(self, request: DraftRequest) -> int:
        if request.chain:
            return 1
        return _BREADTH if request.max_nodes > request.max_depth else self._branches

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def close(self) -> None:
        self._conversations.close()


def make(setup: Setup) -> Habits:
    """The drafter as settings have it."""
    return Habits(setup.corpus, setup.settings.branches, setup.conversations)
