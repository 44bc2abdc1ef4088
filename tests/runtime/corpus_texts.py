"""Texts to keep, for the tests of the corpus and the processes they start."""

from __future__ import annotations

import numpy as np

from localspec.runtime.kept.corpus import Corpus, Sequence, name_of
from localspec.types import Tokens
from tests.native import guesses

LONG = 4000
"""Tokens of a text that takes four pages of a file."""


def text(number: int, length: int = 40) -> Tokens:
    """Texts that share no two tokens in a row."""
    return np.random.default_rng(number).integers(0, 30_000, size=length).astype(np.int32)


def entry(number: int, used: float = 0.0, length: int = 40) -> Sequence:
    tokens = text(number, length)
    return Sequence(name_of(tokens), tokens, used)


def knows(corpus: Corpus, tokens: Tokens) -> bool:
    """Whether the end of a text is found behind its beginning."""
    return np.array_equal(guess(corpus, tokens[:-8]).tokens, tokens[-8:])


def guess(corpus: Corpus, tokens: Tokens) -> guesses.Continuation:
    """What follows; no tokens while the corpus is worked on."""
    borrowed = corpus.borrow()
    if borrowed is None:
        return guesses.NOTHING
    index, _ = borrowed
    try:
        return guesses.guess(index, tokens, 8, 8)
    finally:
        corpus.give_back()
