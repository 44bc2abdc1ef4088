"""Text expected in an answer, and how far the answer has come in it: what a caller predicts (an edited file, say)
need not stand in the conversation for prompt lookup to find it.

The answer is expected to begin where the text does. As long as it says what is expected the place moves along; after a
difference the end of the history is searched in the text, and the next place where it stands is taken.
"""

from __future__ import annotations

import numpy as np

from localspec.types import Tokens


class Prediction:
    """A place in an expected text that follows a history."""

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

        Args:
            history: int32[n], the whole history, at least as long as the last time.
            count: most tokens wanted.
        """
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
