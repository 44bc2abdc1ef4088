"""Prompt lookup with dictionaries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from localspec.types import NO_TOKENS, Tokens


class NgramIndex:
    """Where every n-gram of a history ended, per n: a list of places that grows and shrinks with the history."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._tokens: list[int] = []

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        fresh = tokens.tolist()
        same = min(unchanged, len(self._tokens))
        while same < min(len(fresh), len(self._tokens)) and fresh[same] == self._tokens[same]:
            same += 1
        while len(self._tokens) > same:
            for ngram in self._last_ngrams():
                self._ends[ngram].pop()
                if not self._ends[ngram]:
                    del self._ends[ngram]
            self._tokens.pop()
        for token in fresh[same:]:
            self._tokens.append(token)
            for ngram in self._last_ngrams():
                self._ends.setdefault(ngram, []).append(len(self._tokens))

    def _last_ngrams(self) -> Iterator[tuple[int, ...]]:
        length = len(self._tokens)
        return (tuple(self._tokens[length - n :]) for n in self._sizes if n <= length)

    def lookup(self, max_tokens: int) -> tuple[Tokens, int]:
        for ngram in self._last_ngrams() if max_tokens > 0 else ():
            ends = self._ends[ngram]
            if len(ends) > 1:
                copied = self._tokens[ends[-2] :]
                return np.resize(np.array(copied, dtype=np.int32), max_tokens), len(ngram)
        return NO_TOKENS, 0

    def check_integrity(self) -> str:
        fresh = NgramIndex(self._sizes[-1], self._sizes[0])
        fresh.sync(np.array(self._tokens, dtype=np.int32))
        return "" if fresh._ends == self._ends else "the n-gram index disagrees with its own tokens."

    def memory_bytes(self) -> int:
        """A rough guess: what CPython needs for the lists and keys."""
        return 36 * len(self._tokens) + sum(200 + 36 * (len(k) + len(v)) for k, v in self._ends.items())

    def close(self) -> None:
        self._ends, self._tokens = {}, []
