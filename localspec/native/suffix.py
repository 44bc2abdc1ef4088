"""Suffix decoding in C."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from localspec.errors import KernelError
from localspec.native.guess import GuessBuffer
from localspec.native.kernels import KERNELS
from localspec.native.library import MOST_FOLLOWED, FollowedStruct
from localspec.types import NO_TOKENS, Float32Array, Float64Array, Tokens


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


class Followed(NamedTuple):
    """What a drafter needs of a guess."""

    tokens: Tokens
    """int32[n]."""
    parents: Tokens
    """int32[n], -1 = the context; best first."""
    confidence: Float32Array
    """float32[n]: chances (given the parent) below one half, odds from there on: of a match of m tokens with one sequel
    they are m."""
    match: int
    """Tokens that matched."""
    sequence: int
    """Where the first node was found last, if in the other index; -1 = in its own, or nowhere."""


NOTHING = Continuation(NO_TOKENS, NO_TOKENS, np.empty(0), 0.0, 0, -1)
NOTHING_FOLLOWED = Followed(NO_TOKENS, NO_TOKENS, np.empty(0, dtype=np.float32), 0, -1)


class SuffixIndex:
    """Knows what followed, wherever the longest end of a context stood in many sequences of tokens (0 or more).

    A token comes or goes in O(depth + log n) and takes 16 bytes. Not thread-safe.
    """

    def __init__(self, depth: int = 64) -> None:
        """`depth`: longest match that is told from longer ones. Raises KernelError unless it is 1 to 64."""
        if not 1 <= depth <= 64:
            raise KernelError(f"a suffix index {depth} tokens deep; it must be 1 to 64.")
        self._lib, self._depth = KERNELS.library, depth
        self._tokens, self._parents = (np.zeros(MOST_FOLLOWED, dtype=np.int32) for _ in range(2))
        self._chances, self._score = np.zeros(MOST_FOLLOWED), np.zeros(1)
        self._found = np.zeros(3, dtype=np.int32)
        outputs = (self._tokens, self._parents, self._chances, self._found, self._score)
        self._addresses = tuple(array.ctypes.data for array in outputs)
        self._followed = FollowedStruct()
        self._tree = GuessBuffer(self._followed)
        self._open()

    def _open(self) -> None:
        handle = ctypes.c_void_p()
        status = self._lib.ls_suffix_new(self._depth, ctypes.addressof(handle))
        if status:
            raise KernelError(f"no suffix index {self._depth} tokens deep (status {status}).")
        self._handle = handle.value
        self._free = weakref.finalize(self, self._lib.ls_suffix_free, self._handle)
        self._length = 0

    def add(self, sequences: Sequence[Tokens]) -> int:
        """Adds int32[n] sequences, called by the number returned and those after it.

        Raises:
            KernelError: a negative token, or no memory.
        """
        tokens = np.ascontiguousarray(np.concatenate(sequences) if len(sequences) else NO_TOKENS, dtype=np.int32)
        lengths = np.array([len(one) for one in sequences], dtype=np.int64)
        address = self._found.ctypes.data
        status = self._lib.ls_suffix_add(self._handle, tokens.ctypes.data, lengths.ctypes.data, len(lengths), address)
        if status:
            raise KernelError(f"the suffix index could not take {len(tokens)} tokens (status {status}).")
        self._length = len(sequences[-1]) if len(sequences) else self._length
        return int(self._found[0])

    def remove(self, sequence: int) -> None:
        """Takes a sequence out. Raises KernelError if there is none of that number."""
        if self._lib.ls_suffix_remove(self._handle, sequence):
            raise KernelError(f"the suffix index has no sequence {sequence}.")
        self._length = 0  # it may have been the newest

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        """Makes the newest sequence (begun if there is none) int32[n] `tokens`: truncates to what is the same, appends.

        The first `unchanged` tokens are not looked at, as for `NgramIndex`. Raises KernelError as `add` does.
        """
        if not 0 <= unchanged <= len(tokens):
            raise KernelError(f"{unchanged} of {len(tokens)} tokens cannot be unchanged.")
        unchanged = min(unchanged, self._length)
        tail = np.ascontiguousarray(tokens[unchanged:], dtype=np.int32)
        status = self._lib.ls_suffix_sync(self._handle, unchanged, tail.ctypes.data, len(tail))
        if status:
            raise KernelError(f"the suffix index could not take {len(tokens)} tokens (status {status}).")
        self._length = len(tokens)

    def guess(
        self, context: Tokens, max_nodes: int, max_depth: int, *, tree: bool = False, runs_on: bool = False
    ) -> Continuation:
        """What followed the longest end of int32[n] `context`: at most 64 nodes, best first; a chain unless `tree`.

        The places of the longest match vote for what comes next, up to 32 of them, evenly spaced among all; of equals
        the one seen last wins.

        Args:
            context: all that matters of it is its end, `depth` tokens.
            max_nodes: of the guess.
            max_depth: most tokens in a row.
            tree: best first by the product of chances; else the most likely token each time.
            runs_on: what reaches the end of its sequence goes on with what is guessed; for an index of one sequence,
                whose end the context is.
        """
        if max_nodes < 0 or max_depth < 0:
            raise KernelError(f"{max_nodes} nodes of depth {max_depth} were asked for.")
        end = np.ascontiguousarray(context[-self._depth :], dtype=np.int32)
        nodes, depth = min(max_nodes, MOST_FOLLOWED), min(max_depth, MOST_FOLLOWED)
        status = self._lib.ls_suffix_guess(
            self._handle, end.ctypes.data, len(end), nodes, depth, tree + 2 * runs_on, *self._addresses
        )
        if status:
            raise KernelError(f"the suffix index cannot guess (status {status}).")
        nodes, match, sequence = self._found.tolist()
        if not nodes:
            return NOTHING
        return Continuation(
            self._tokens[:nodes].copy(),
            self._parents[:nodes].copy(),
            self._chances[:nodes].copy(),
            float(self._score[0]),
            match,
            sequence,
        )

    def follow(
        self,
        tokens: Tokens,
        unchanged: int,
        max_nodes: int,
        max_depth: int,
        *,
        tree: bool = False,
        other: SuffixIndex | None = None,
        least: int = 1,
    ) -> Followed:
        """All that a drafter does in a pass: `sync` to int32[n] `tokens`, then the better of two guesses after them.

        Args:
            tokens: a conversation, whole; the newest sequence.
            unchanged: the first so many are not looked at.
            max_nodes: of the guess; 0 = only `sync`.
            max_depth: most tokens in a row.
            tree: as in `guess`.
            other: searched, too, and preferred where it promises more; its sequences do not run on.
            least: tokens that must match there.

        Raises:
            KernelError: as `sync` and `guess`.
        """
        if not 0 <= unchanged <= len(tokens) or max_nodes < 0 or max_depth < 0:
            raise KernelError(f"{unchanged} of {len(tokens)} tokens, {max_nodes} nodes of depth {max_depth}.")
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        length, found = len(tokens), self._followed
        unchanged = min(unchanged, self._length)
        status = self._lib.suited(length - unchanged).ls_suffix_follow(
            self._handle,
            None if other is None else other._handle,
            least,
            unchanged,
            tokens.ctypes.data,
            length,
            min(max_nodes, MOST_FOLLOWED),
            min(max_depth, MOST_FOLLOWED),
            tree,
            self._tree.address,
        )
        if status:
            raise KernelError(f"the suffix index could not take {length} tokens (status {status}).")
        self._length = length
        if not found.nodes:
            return NOTHING_FOLLOWED
        return Followed(*self._tree.taken(), found.match, found.sequence)

    def close(self) -> None:
        """Frees the memory; a second call does nothing, and what is asked later sees an empty index."""
        self._free()
        self._open()
