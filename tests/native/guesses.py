"""A suffix index that is asked for one of the guesses of `SuffixIndex.follow`, with its chances and its score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localspec.errors import KernelError
from localspec.native.indexes import SuffixIndex
from localspec.native.library import MOST_FOLLOWED
from localspec.types import NO_TOKENS, Float64Array, Tokens


class Continuation(NamedTuple):
    """What followed the longest match."""

    tokens: Tokens
    """int32[n]."""
    parents: Tokens
    """int32[n], -1 = the context; best first."""
    chances: Float64Array
    """float64[n], of being right if the parent is: c of n places agree, after a match of m: c / (n + 1 / m)."""
    score: float
    """Tokens expected to be right: the sum over all nodes of the products of chances."""
    match: int
    """Tokens that matched."""
    sequence: int
    """Where the first node was found last; -1 = nowhere."""


NOTHING = Continuation(NO_TOKENS, NO_TOKENS, np.empty(0), 0.0, 0, -1)


def guess(
    index: SuffixIndex,
    context: Tokens,
    max_nodes: int,
    max_depth: int,
    *,
    tree: bool = False,
    runs_on: bool = False,
) -> Continuation:
    """What followed the longest end of int32[n] `context`.

    Args:
        tree: best first by the product of chances; else the most likely token each time.
        runs_on: what reaches the end of its sequence goes on with what is guessed; for an index of one sequence,
            whose end the context is.
    """
    if max_nodes < 0 or max_depth < 0:
        raise KernelError(f"{max_nodes} nodes of depth {max_depth} were asked for.")
    tokens, parents = (np.zeros(MOST_FOLLOWED, dtype=np.int32) for _ in range(2))
    chances, score, found = np.zeros(MOST_FOLLOWED), np.zeros(1), np.zeros(3, dtype=np.int32)
    end = np.ascontiguousarray(context[-index._sizes[0] :], dtype=np.int32)
    nodes, depth = min(max_nodes, MOST_FOLLOWED), min(max_depth, MOST_FOLLOWED)
    outputs = (array.ctypes.data for array in (tokens, parents, chances, found, score))
    status = index._lib.ls_suffix_guess(
        index._handle, end.ctypes.data, len(end), nodes, depth, tree + 2 * runs_on, *outputs
    )
    assert status == 0
    nodes, match, sequence = found.tolist()
    if not nodes:
        return NOTHING
    return Continuation(tokens[:nodes], parents[:nodes], chances[:nodes], float(score[0]), match, sequence)


class GuessingIndex(SuffixIndex):
    """What `follow` does, step by step."""

    guess = guess

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        """Makes the newest sequence (begun if there is none) int32[n] `tokens`, of which the first `unchanged` are not
        looked at."""
        if not 0 <= unchanged <= len(tokens):
            raise KernelError(f"{unchanged} of {len(tokens)} tokens cannot be unchanged.")
        unchanged = min(unchanged, self._length)
        tail = np.ascontiguousarray(tokens[unchanged:], dtype=np.int32)
        status = self._lib.ls_suffix_sync(self._handle, unchanged, tail.ctypes.data, len(tail))
        if status:
            raise KernelError(f"the suffix index could not take {len(tokens)} tokens (status {status}).")
        self._length = len(tokens)
