"""Token recycling: what did the target think of saying the last time it stood after this token?

Every row of a pass names more than the one token that is emitted: the next best ones, and what would follow guesses
that were wrong. The best few of every row are kept, by the token that the row follows, and a draft goes from token to
token through what is kept: the likeliest path first, and where a tree is asked for, whatever is likeliest next
(best first). Luo et al. 2024, "Turning trash into treasure: accelerating inference of large language models with token
recycling". Under a temperature the target's own noise ranks what is kept, as the target will rank it (*coupled*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.drafters.setup import Setup
from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    HIGHEST_PROBABILITY,
    NEEDS_NOTHING,
    Draft,
    DraftRequest,
    History,
    Outcome,
)
from localspec.errors import UsageError
from localspec.native.successors import SUCCESSORS, SuccessorIndex


@dataclass(frozen=True, slots=True)
class RecyclingSettings:
    """Settings of token recycling."""

    branches: int = 1
    """Guesses per position, at most: 1 drafts a chain, 2 or more a tree, best first."""

    def __post_init__(self) -> None:
        if not 1 <= self.branches <= SUCCESSORS:
            raise UsageError(f"branches is {self.branches}; it must be between 1 and {SUCCESSORS}.")


class TokenRecycling:
    """Guesses from what was kept of all requests; knows nothing of any one of them."""

    name = "recycling"
    needs = NEEDS_NOTHING
    free = True

    def __init__(self, successors: SuccessorIndex | None = None, settings: RecyclingSettings | None = None) -> None:
        """`successors` goes on learning, and outlives it."""
        self._successors = SuccessorIndex() if successors is None else successors
        self.settings = settings or RecyclingSettings()
        self._asked: set[int] = set()
        """Slots that asked for a draft of the coming pass. Rows of other slots are not kept."""

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(request) for request in requests]

    def _guess(self, request: DraftRequest) -> Draft:
        nodes, depth, tokens = request.max_nodes, request.max_depth, request.history.tokens
        if request.needs_probs:  # else a text would depend on earlier ones
            return EMPTY_DRAFT
        self._asked.add(request.slot)
        if min(nodes, depth) < 1 or not len(tokens):
            return EMPTY_DRAFT
        found = self._successors.guess(
            int(tokens[-1]),
            request.asked.sampling.temperature,
            request.noise,
            len(tokens),
            nodes,
            depth,
            self._breadth(request),
        )
        if not len(found.tokens):
            return EMPTY_DRAFT
        confidence = np.minimum(
            found.confidence, np.float32(HIGHEST_PROBABILITY)
        )  # a score; no share is as good as a long match
        return Draft(found.tokens, found.parents, None, confidence, self.name)

    def _breadth(self, request: DraftRequest) -> int:
        if request.chain:
            return 1
        return SUCCESSORS if request.max_nodes > request.max_depth else self.settings.branches

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.slot in self._asked:
                self._learn(outcome)
        self._asked.clear()

    def _learn(self, outcome: Outcome) -> None:
        """Keeps what the rows say: those after wrong guesses first, so that the text's own have the last word."""
        history = outcome.history.tokens
        if not len(outcome.draft):
            if len(history) > 1 and history[-1] == outcome.verdict.next_token:
                self._successors.learn(outcome.rows, [0], [int(history[-2])])
            return
        drafted = outcome.draft.tokens.tolist()
        path = outcome.verdict.accepted.tolist()
        said = [*(drafted[node] for node in path), outcome.verdict.next_token]
        if history[-len(said) :].tolist() != said or len(history) == len(said):
            return  # a stop cut the end off: what stood before is not known
        before = {-1: int(history[-len(said) - 1])} | dict(enumerate(drafted))
        nodes = [*(set(before) - {-1, *path}), -1, *path]
        self._successors.learn(outcome.rows, [1 + node for node in nodes], [before[node] for node in nodes])

    def close(self) -> None:
        pass


def make(setup: Setup) -> TokenRecycling:
    """The drafter as settings have it."""
    return TokenRecycling(setup.successors, RecyclingSettings(setup.settings.branches))
