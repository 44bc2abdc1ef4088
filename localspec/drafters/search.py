"""Drafters that search text: no weights, no passes of their own. All but suffix decoding and habits draw chains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from localspec.drafters.setup import MOST_BRANCHES, Conversations, FreeDrafter, Setup, SharedTexts, check_branches
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Needs, Outcome
from localspec.errors import UsageError
from localspec.native.indexes import LONGEST, ContextCounts, NgramIndex, SuffixIndex
from localspec.types import NO_TOKENS, Tokens

_FORCED_CONFIDENCE = 16.0
"""Confidence of every forced node: that of a match of 16 tokens."""


class GrammarForced(FreeDrafter):
    """Where the request's grammar leaves one way to go on (a key of a JSON schema, say), that is the guess.

    It costs nothing. The target still has its say: the same text can often be cut into tokens in several ways."""

    name = "grammar"
    needs = Needs(constraint=True)

    def __init__(self, setup: Setup | None = None) -> None:
        pass

    def _guess(self, request: DraftRequest) -> Draft:
        limit = min(request.max_nodes, request.max_depth)
        tokens = request.constraint.forced()[:limit] if request.constraint is not None and limit > 0 else NO_TOKENS
        if not len(tokens):
            return EMPTY_DRAFT
        confidence = np.full(len(tokens), _FORCED_CONFIDENCE, dtype=np.float32)
        return Draft.chain(tokens, confidence=confidence, origin=self.name)


class Prediction:
    """A place in an expected text that follows a history: what a caller predicts (an edited file, say) need not stand
    in the conversation to be found.

    The answer is expected to begin where the text does. As long as it says what is expected the place moves along;
    after a difference the end of the history is searched in the text, and the next place where it stands is taken."""

    def __init__(self, tokens: Tokens, shortest: int, longest: int, start: int) -> None:
        """`tokens`: int32[m], the expected text, which is expected to begin where the history has the length `start`.
        At least `shortest` tokens must match to find a place again, and from `longest` on a longer match is no better.
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


@dataclass(slots=True)
class _Indexed:
    index: NgramIndex
    history: History | None = None
    epoch: int = 0
    length: int = 0
    prediction: Prediction | None = None


class PromptLookup(FreeDrafter):
    """Guesses what followed the last time these tokens came up in this very conversation. One n-gram index per slot.

    Text that the caller predicts is searched, too, and preferred where it matches as well. Deterministic, strong where
    the answer repeats its input (edit, extract, quote). Saxena 2023, "Prompt lookup decoding"; the index is native
    (`native/ngram.c`)."""

    name = "lookup"

    def __init__(self, min_ngram: int = 2, max_ngram: int = 5) -> None:
        """The shortest and the longest end of the history that is looked up, the longest first; shorter ones find more
        and are wrong more often. Raises UsageError: there are no such n-grams."""
        if not 1 <= min_ngram <= max_ngram <= 32:
            raise UsageError(
                f"min_ngram is {min_ngram} and max_ngram {max_ngram}; "
                "both must be between 1 and 32 and the first not above the second."
            )
        self._shortest, self._longest = min_ngram, max_ngram
        self._slots = defaultdict[int, _Indexed](lambda: _Indexed(NgramIndex(min_ngram, max_ngram)))

    @classmethod
    def of(cls, setup: Setup) -> PromptLookup:
        return cls(setup.settings.min_ngram, setup.settings.max_ngram)

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
        history, shortest, longest = request.history, self._shortest, self._longest
        seen = self._slots[request.slot]
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


SHORTEST_MATCH = 2
"""Fewest tokens that must match: a match of one token is no evidence."""
PAST_MATCH = LONGEST + 1
"""Fewest tokens that must match in past answers: what they say after fewer is counted (`Habits`), and counts of all
places promise more than the places of the longest match."""


class _Searching(FreeDrafter):
    def __init__(
        self, corpus: SharedTexts | None = None, branches: int = 1, conversations: Conversations | None = None
    ) -> None:
        """`corpus` is not closed with it. With 1 of `branches` guesses are chains, else trees, best first.
        `conversations`: those that other drafters search, too. Raises UsageError: no such number of branches."""
        check_branches(branches)
        self._corpus, self._branches = corpus, branches
        self._conversations = conversations or Conversations()
        self._sources: dict[int, int] = {}
        """By slot, number of the corpus sequence that the last guess came from; of suffix decoding."""

    @classmethod
    def of(cls, setup: Setup) -> _Searching:
        return cls(setup.corpus, setup.settings.branches, setup.conversations)

    @contextmanager
    def _borrowed(self, searched: bool) -> Iterator[tuple[SuffixIndex | None, ContextCounts | None]]:
        """The corpus and its counts, if they are `searched` and not in use."""
        borrowed = self._corpus.borrow() if self._corpus is not None and searched else None
        try:
            yield borrowed or (None, None)
        finally:
            if borrowed is not None and self._corpus is not None:
                self._corpus.give_back()

    def close(self) -> None:
        self._conversations.close()


class SuffixDecoding(_Searching):
    """Guesses what followed, wherever the end of this conversation stood before.

    Unlike prompt lookup it finds the longest match, lets all its places vote, and looks beyond the conversation, into a
    corpus that lasts and that all slots share. The guess that is expected to bring more is taken, of equals that of the
    conversation. Oliaro et al. 2024, "SuffixDecoding: a model-free approach to speeding up large language model
    inference"; the index is native (`native/suffix.c`)."""

    name = "suffix"

    def _guess(self, request: DraftRequest) -> Draft:
        nodes, depth, tokens = request.max_nodes, request.max_depth, request.history.tokens
        tree = not request.chain and (self._branches > 1 or nodes > depth)
        seen = self._conversations.of(request)
        # With a corpus a text drawn by *rejection* or *block* would depend on earlier ones.
        with self._borrowed(request.asked.recall and not request.needs_probs) as (other, _):
            found = seen.index.follow(
                tokens, seen.length, max(0, nodes), max(0, depth), tree=tree, other=other, least=PAST_MATCH
            )
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
            if draft.origin == self.name and len(outcome.verdict.accepted):
                self._corpus.used(source)


class Habits(_Searching):
    """Guesses what this model says after its last few tokens.

    What followed the last one to four tokens is counted, in the conversation and in the model's own past answers, which
    all slots share, and the counts of all lengths are mixed (`native/counts.c`). So a guess needs no long match. Under
    a temperature the target's own noise ranks the guesses, as the target will rank them (*coupled*)."""

    name = "habits"

    def _guess(self, request: DraftRequest) -> Draft:
        tokens = request.history.tokens
        if request.needs_probs or not len(tokens):  # else a text would depend on earlier ones
            return EMPTY_DRAFT
        seen = self._conversations.of(request)
        with self._borrowed(request.asked.recall) as (_, past):
            found = seen.counts.guess(
                tokens,
                seen.counted,
                request.asked.sampling.temperature,
                request.noise,
                max(0, request.max_nodes),
                max(0, request.max_depth),
                1 if request.chain else MOST_BRANCHES if request.max_nodes > request.max_depth else self._branches,
                past,
            )
        seen.counted = len(tokens)
        if not len(found.tokens):
            return EMPTY_DRAFT
        return Draft(found.tokens, found.parents, None, found.confidence, self.name)
