"""Prompt lookup: what followed the last time these tokens came up in this very conversation?

Text that the caller predicts is searched, too, and preferred where it matches as well. Deterministic, needs no model,
strong where the answer repeats its input (edit, extract, quote). Saxena 2023, "Prompt lookup decoding"; the index is
native (`native/ngram.c`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localspec.drafters.setup import FreeDrafter, Setup
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History
from localspec.errors import UsageError
from localspec.native.indexes import NgramIndex
from localspec.types import NO_TOKENS, Tokens


class Prediction:
    """A place in an expected text that follows a history: what a caller predicts (an edited file, say) need not stand
    in the conversation to be found.

    The answer is expected to begin where the text does. As long as it says what is expected the place moves along;
    after a difference the end of the history is searched in the text, and the next place where it stands is taken.
    """

    def __init__(self, tokens: Tokens, shortest: int, longest: int, start: int) -> None:
        """
        Args:
            tokens: int32[m], the expected text.
            shortest: tokens that must match to find a place again.
            longest: tokens of a match from which on a longer one is no better.
            start: length of the history where the text is expected to begin.
        """
        self.tokens = tokens
        self._shortest, self._longest = shortest, longest
        self._seen = start
        self._place = 0
        """Index in the prediction of the token that is expected next; the last known index while it is lost."""
        self._matched = longest
        """Number of tokens before `_place` that agree with the history; 0 = the place is lost."""

    def lookup(self, history: Tokens, count: int) -> tuple[Tokens, int]:
        """What is expected next, at most `count` tokens, and how many tokens before it agree; empty and 0 if unknown.
        `history`: int32[n], the whole of it, at least as long as the last time."""
        new = history[self._seen :]
        self._seen = len(history)
        end = self._place + len(new)
        if self._matched and np.array_equal(self.tokens[self._place : end], new):
            self._place, self._matched = end, self._matched + len(new)
        else:
            self._find(history)
        expected = self.tokens[self._place : self._place + count] if self._matched else self.tokens[:0]
        return expected, self._matched if len(expected) else 0

    def _find(self, history: Tokens) -> None:
        """The place after the longest match of the history's end: of equals the next one, else the last before."""
        places = np.arange(1, len(self.tokens) + 1)
        self._matched, last = 0, self._place
        for length in range(1, min(self._longest, len(history)) + 1):
            places = places[places >= length]
            places = places[self.tokens[places - length] == history[-length]]
            if not len(places):
                break
            if length >= self._shortest:
                self._matched = length
                ahead = places[places >= last]
                self._place = int(ahead[0] if len(ahead) else places[-1])


PREDICTION = "prediction"
"""Origin of drafts from predicted text."""


@dataclass(frozen=True, slots=True)
class PromptLookupSettings:
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


class PromptLookup(FreeDrafter):
    """One n-gram index per slot, a cache of that slot's history."""

    name = "lookup"

    def __init__(self, settings: PromptLookupSettings | None = None) -> None:
        self.settings = settings or PromptLookupSettings()
        self._slots: dict[int, _Indexed] = {}

    def matched(self, request: DraftRequest) -> int:
        return self._synced(request).index.lookup(1)[1]

    def _guess(self, request: DraftRequest) -> Draft:
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

    def close(self) -> None:
        for seen in self._slots.values():
            seen.index.close()
        self._slots.clear()


def make(setup: Setup) -> PromptLookup:
    return PromptLookup(PromptLookupSettings(setup.settings.min_ngram, setup.settings.max_ngram))
