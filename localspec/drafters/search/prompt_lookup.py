"""Prompt lookup: what followed the last time these tokens came up in this very conversation?

Text that the caller predicts is searched, too, and preferred where it matches as well. Deterministic, needs no model,
strong where the answer repeats its input (edit, extract, quote). Saxena 2023, "Prompt lookup decoding"; the index is
native (`native/ngram.c`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.drafters.search.prediction import Prediction
from localspec.drafters.setup import Setup
from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Outcome
from localspec.errors import UsageError
from localspec.native.indexes import NgramIndex
from localspec.types import NO_TOKENS

PREDICTION = "prediction"
"""Origin of drafts from predicted text."""


@dataclass(frozen=True, slots=True)
class PromptLookupSettings:
    """Settings of prompt lookup."""

    min_ngram: int = 2
    """Shortest end of the history that is looked up; shorter finds more and is wrong more often."""
    max_ngram: int = 5
    """Longest end of the history that is looked up; tried first."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram <= 32:
            raise UsageError(
                f"min_ngram is {self.min_ngram} and max_ngram {self.max_ngram}; "
                "both must be between 1 and 32 and the first not above the second."
            )


@dataclass(slots=True)
class _Indexed:
    index: NgramIndex
    history: History | None = None
    epoch: int = 0
    length: int = 0
    prediction: Prediction | None = None


class PromptLookup:
    """One n-gram index per slot, a cache of that slot's history."""

    name = "lookup"
    needs = NEEDS_NOTHING
    free = True

    def __init__(self, settings: PromptLookupSettings | None = None) -> None:
        self.settings = settings or PromptLookupSettings()
        self._slots: dict[int, _Indexed] = {}

    def missing(self, slot: int, history: History) -> int:
        return 0

    def matched(self, request: DraftRequest) -> int:
        return self._synced(request).index.lookup(1)[1]

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._lookup(request) for request in requests]

    def _lookup(self, request: DraftRequest) -> Draft:
        limit = min(request.max_nodes, request.max_depth)
        seen = self._synced(request)
        if limit < 1:
            return EMPTY_DRAFT
        tokens, matched, origin = *seen.index.lookup(limit), self.name
        if seen.prediction is not None:
            expected, agreed = seen.prediction.lookup(request.history.tokens, limit)
            if agreed and agreed >= matched:
                tokens, matched, origin = expected, agreed, PREDICTION
        if not len(tokens):
            return EMPTY_DRAFT
        confidence = np.full(len(tokens), matched, dtype=np.float32)
        return Draft.chain(tokens, confidence=confidence, origin=origin)

    def _synced(self, request: DraftRequest) -> _Indexed:
        history, shortest, longest = request.history, self.settings.min_ngram, self.settings.max_ngram
        seen = self._slots.get(request.slot)
        if seen is None:
            seen = self._slots[request.slot] = _Indexed(NgramIndex(shortest, longest))
        same = seen.history is history and seen.epoch == history.epoch
        seen.index.sync(history.tokens, unchanged=seen.length if same else 0)
        predicted = seen.prediction.tokens if seen.prediction is not None else NO_TOKENS
        if not same or predicted is not request.asked.prediction:
            wanted = len(request.asked.prediction) > 0
            seen.prediction = Prediction(request.asked.prediction, shortest, longest, len(history)) if wanted else None
        seen.history, seen.epoch, seen.length = history, history.epoch, len(history)
        return seen

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass  # the next draft reads the history

    def close(self) -> None:
        for seen in self._slots.values():
            seen.index.close()
        self._slots.clear()


def make(setup: Setup) -> PromptLookup:
    """The drafter as settings have it."""
    return PromptLookup(PromptLookupSettings(setup.settings.min_ngram, setup.settings.max_ngram))
