"""A drafter of one's own: whatever followed a token the last time follows it again."""

from collections.abc import Sequence
from itertools import pairwise

from localspec import Draft
from localspec.drafters.plugin import Setup
from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, DraftRequest, History, Outcome


class Repeat:
    name = "repeat"  # as the entry point is called
    needs = NEEDS_NOTHING  # no hidden states of the target
    free = True  # takes microseconds, so it may be asked in every pass

    def __init__(self, setup: Setup) -> None:
        self._ends = setup.end_tokens

    def missing(self, slot: int, history: History) -> int:
        return 0  # tokens it would have to read first

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(request) for request in requests]

    def _guess(self, request: DraftRequest) -> Draft:
        tokens: list[int] = request.history.tokens.tolist()
        follower = dict(pairwise(tokens))
        guesses: list[int] = []
        token: int | None = follower.get(tokens[-1])
        while token is not None and len(guesses) < min(request.max_nodes, request.max_depth):
            guesses.append(token)
            token = None if token in self._ends else follower.get(token)
        return Draft.chain(guesses, origin=self.name) if guesses else EMPTY_DRAFT

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass  # what became of its guesses; the next history says it, too

    def close(self) -> None:
        pass
