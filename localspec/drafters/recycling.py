"""Token recycling: what did the target think of saying the last time it stood behind this token?

Every row of a pass names more than the one token that is emitted: the next best ones, and what would follow guesses
that were wrong. The best few of every row are kept, by the token that the row follows, and a draft goes from token to
token through what is kept: the likeliest path first, and where a tree is asked for, whatever is likeliest next
(best first). Luo et al. 2024, "Turning trash into treasure: accelerating inference of large language models with token
recycling". Under a temperature the target's own noise ranks what is kept, as the target will rank it (*coupled*).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from localspec import kernels
from localspec.engine.acceptance import SURE
from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Outcome
from localspec.errors import KernelError, UsageError
from localspec.types import NO_TOKENS, Float32Array, LogitRows, Noise, Purpose, SamplingParams, Tokens

SUCCESSORS = 8
"""Tokens kept behind each token."""
_BEST = SamplingParams(temperature=0.0, top_k=32)
"""Finds the likeliest tokens of a row, and their shares of the 32 likeliest: 14 microseconds for 151,936 tokens, where
their probabilities among all take 300 to 700."""
_NO_NOISE = Noise(0)

_LEAST = 0.03
"""Behind a guess that is less likely than this to be reached nothing more is guessed."""


class Successors:
    """The likeliest tokens behind each token, as the target saw them last.

    64 bytes a token of the vocabulary: 9.7 MB for 151,936, and never more; memory is taken only as tokens are met.
    """

    def __init__(self) -> None:
        self._tokens: Tokens
        self._shares: Float32Array
        """0 = nothing is kept there."""
        self.clear()

    def clear(self) -> None:
        """Keeps nothing."""
        self._tokens = np.zeros((0, SUCCESSORS), dtype=np.int32)
        self._shares = np.zeros((0, SUCCESSORS), dtype=np.float32)

    def learn(self, token: int, rows: LogitRows, index: int) -> None:
        """rows[index] follows that token."""
        if rows.n_vocab != len(self._tokens):  # the first row says how large the vocabulary is
            self._tokens = np.zeros((rows.n_vocab, SUCCESSORS), dtype=np.int32)
            self._shares = np.zeros((rows.n_vocab, SUCCESSORS), dtype=np.float32)
        if not 0 <= token < rows.n_vocab:
            return
        try:
            count = min(SUCCESSORS, rows.n_vocab)
            found, shares = kernels.sample(rows, index, _BEST, NO_TOKENS, _NO_NOISE, 0, count)
        except KernelError:  # behind a wrong guess, where nobody looked before
            return
        self._tokens[token, : len(found)] = found
        self._shares[token] = 0.0
        self._shares[token, : len(found)] = shares

    def of(self, token: int) -> tuple[Tokens, list[float]]:
        """int32[n] likeliest tokens, best first, and their shares; often none."""
        if not 0 <= token < len(self._tokens):
            return NO_TOKENS, []
        shares = self._shares[token].tolist()
        count = shares.index(0.0) if shares[-1] == 0.0 else SUCCESSORS
        return self._tokens[token, :count], shares[:count]


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

    def __init__(self, successors: Successors | None = None, settings: RecyclingSettings | None = None) -> None:
        """`successors` goes on learning, and outlives it."""
        self._successors = Successors() if successors is None else successors
        self.settings = settings or RecyclingSettings()
        self._asked: set[int] = set()
        """Slots it was asked about for the coming pass: nothing is kept of others, so plain decoding pays nothing."""

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(request) for request in requests]

    def _guess(self, request: DraftRequest) -> Draft:
        nodes, depth, history = request.max_nodes, request.max_depth, request.history
        if request.needs_probs:  # else a text would depend on earlier ones
            return EMPTY_DRAFT
        self._asked.add(request.slot)
        if min(nodes, depth) < 1 or not len(history):
            return EMPTY_DRAFT
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        waiting = self._children(request, int(history.tokens[-1]), -1, 1, 1.0)
        while waiting and len(tokens) < nodes:
            reach, level, parent, _, token, chance = heappop(waiting)
            tokens.append(token)
            parents.append(parent)
            confidence.append(chance)
            if level < depth and -reach >= _LEAST:
                for child in self._children(request, token, len(tokens) - 1, level + 1, -reach):
                    heappush(waiting, child)
        if not tokens:
            return EMPTY_DRAFT
        return Draft(
            np.array(tokens, dtype=np.int32),
            np.array(parents, dtype=np.int32),
            None,
            np.array(confidence, dtype=np.float32),
            self.name,
        )

    def _children(
        self, request: DraftRequest, token: int, parent: int, level: int, reach: float
    ) -> list[tuple[float, int, int, int, int, float]]:
        """(-reach, level, parent, rank, token, confidence) of the guesses behind a token, sorted."""
        found, shares = self._successors.of(token)
        if not shares:
            return []
        chances = _chances(request, found, shares, len(request.history) + level - 1)
        breadth = self._breadth(request)
        if breadth == 1:
            best = [chances.index(max(chances))]
        else:
            best = sorted(range(len(chances)), key=lambda i: -chances[i])[:breadth]
        return [(-reach * chances[i], level, parent, rank, int(found[i]), chances[i]) for rank, i in enumerate(best)]

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
        """Keeps what the rows say: those behind wrong guesses first, so that the text's own have the last word."""
        drafted, history = outcome.draft.tokens.tolist(), outcome.history.tokens
        path = outcome.verdict.accepted.tolist()
        said = [*(drafted[node] for node in path), outcome.verdict.next_token]
        if history[-len(said) :].tolist() != said or len(history) == len(said):
            return  # a stop cut the end off: what stood before is not known
        behind = {-1: int(history[-len(said) - 1])} | dict(enumerate(drafted))
        for node in [*(set(behind) - {-1, *path}), -1, *path]:
            self._successors.learn(behind[node], outcome.rows, 1 + node)

    def close(self) -> None:
        pass


def _chances(request: DraftRequest, tokens: Tokens, shares: list[float], position: int) -> list[float]:
    """How likely each is to be the target's token there, together as likely as all that is kept: a score.

    With p its share, the target takes the largest log p / T + g or log p + T g, where g is the noise at that place.
    """
    temperature = request.sampling.temperature
    if temperature <= 0.0:
        return [min(SURE, share) for share in shares]
    noise = kernels.gumbel(request.noise, Purpose.SAMPLE, position, tokens).tolist()
    scores = [math.log(share) + temperature * one for share, one in zip(shares, noise, strict=True)]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    known = sum(shares) / sum(weights)
    return [min(SURE, weight * known) for weight in weights]
