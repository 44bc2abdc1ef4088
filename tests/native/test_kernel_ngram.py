"""Prompt lookup against a brute-force twin, through edits of every kind."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import KernelError
from localspec.native.indexes import NgramIndex
from localspec.types import Tokens
from tests.native.inside import intact, memory_bytes

from .backends import BACKENDS, Backend

pytestmark = pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)


def tokens_of(values: Any) -> Tokens:
    return np.array(values, dtype=np.int32)


def brute_force(history: list[int], low: int, high: int, max_tokens: int) -> tuple[list[int], int]:
    """The last earlier place of the longest suffix, and what followed it, going on in circles."""
    for n in range(min(high, len(history) - 1), low - 1, -1):
        for end in range(len(history) - 1, n - 1, -1):
            if history[end - n : end] == history[-n:]:
                copy = list(history[end:])
                while len(copy) < max_tokens:
                    copy.append(copy[len(copy) - (len(history) - end)])
                return (copy[:max_tokens], n) if max_tokens else ([], 0)
    return [], 0


EDITS = st.lists(
    st.tuples(st.integers(0, 60), st.lists(st.integers(0, 2), max_size=40), st.booleans()), min_size=1, max_size=12
)


@given(edits=EDITS, low=st.integers(1, 3), extra=st.integers(0, 4), max_tokens=st.integers(0, 9))
def test_lookup_agrees_with_brute_force(
    backend: Backend, edits: list[tuple[int, list[int], bool]], low: int, extra: int, max_tokens: int
) -> None:
    index = backend.ngrams(low, low + extra)
    history: list[int] = []
    for keep, tail, tell in edits:
        kept = min(keep, len(history))
        history = history[:kept] + tail
        index.sync(tokens_of(history), kept if tell else 0)
        found, match = index.lookup(max_tokens)
        assert (found.tolist(), match) == brute_force(history, low, low + extra, max_tokens)
        assert intact(index)
    index.close()


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_token_by_token_equals_all_at_once(backend: Backend, seed: int) -> None:
    rng = np.random.default_rng(seed)
    history = rng.integers(0, 4, size=700).astype(np.int32)
    grown = backend.ngrams(2, 5)
    for end in range(0, 701, 7):
        grown.sync(history[:end], unchanged=max(0, end - 7))
        whole = backend.ngrams(2, 5)
        whole.sync(history[:end])
        assert grown.lookup(6)[0].tolist() == whole.lookup(6)[0].tolist()
    assert intact(grown)


def test_memory_is_given_back_and_a_closed_index_starts_anew(backend: Backend) -> None:
    index = backend.ngrams(1, 4)
    index.sync(np.arange(50_000, dtype=np.int32) % 1000)
    assert memory_bytes(index) > 50_000
    assert index.lookup(3)[1] == 4
    index.close()
    index.close()
    assert memory_bytes(index) < 10_000
    assert index.lookup(3)[1] == 0
    index.sync(tokens_of([1, 2, 1]))
    assert index.lookup(3)[0].tolist() == [2, 1, 2]


def test_bad_arguments_are_refused(backend: Backend) -> None:
    for low, high in ((0, 3), (3, 2), (1, 65)):
        with pytest.raises(KernelError):
            NgramIndex(low, high)
    index = NgramIndex(1, 3)
    with pytest.raises(KernelError):
        index.sync(tokens_of([1, 2]), unchanged=3)
    with pytest.raises(KernelError):
        index.lookup(-1)


def test_a_damaged_index_is_noticed(backend: Backend) -> None:
    index = backend.ngrams(1, 3)
    index.sync(tokens_of([1, 2, 1, 2, 1]))
    assert intact(index)
    if backend.name == "reference":
        index._ends[(1,)].pop()
    else:  # the first of its tokens, behind two int32, three int64: struct ls_ngram in native/ngram.c
        ctypes.c_int32.from_address(ctypes.c_size_t.from_address(index._handle + 32).value).value = 9
    assert not intact(index)
