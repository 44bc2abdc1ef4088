"""What drafters search, in C: n-grams of a conversation, suffixes of many sequences, counts of what followed."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from localspec.errors import KernelError
from localspec.native.kernels import KERNELS
from localspec.native.library import MOST_FOLLOWED, FollowedStruct, GuessStruct
from localspec.types import NO_TOKENS, Float32Array, Noise, Tokens


class TreeGuess(NamedTuple):
    """A tree of guesses, best first."""

    tokens: Tokens  # int32[n]
    parents: Tokens  # int32[n], -1 = the context
    confidence: Float32Array
    """float32[n]: chances (given the parent). Of a `SuffixIndex` odds from one half on: of a match of m tokens with one
    sequel they are m."""
    match: int = 0  # tokens that matched, of a `SuffixIndex`
    sequence: int = -1  # where the first node was found last, if in the other index; -1 = in its own, or nowhere


NO_GUESS = TreeGuess(NO_TOKENS, NO_TOKENS, np.empty(0, dtype=np.float32))


class GuessBuffer:
    """Memory for one tree, which C writes to `address`."""

    def __init__(self, found: GuessStruct | FollowedStruct | None = None) -> None:
        """`found`: where it is written; None = in memory of its own."""
        self._struct = found = found or GuessStruct()
        self.address = ctypes.addressof(found)
        tokens, parents = (np.frombuffer(one, dtype=np.int32) for one in (found.tokens, found.parents))
        self._views = tokens, parents, np.frombuffer(found.confidence, dtype=np.float32)

    def taken(self, match: int = 0, sequence: int = -1) -> TreeGuess:
        nodes: int = self._struct.nodes
        if not nodes:
            return NO_GUESS
        tokens, parents, confidence = self._views
        return TreeGuess(tokens[:nodes].copy(), parents[:nodes].copy(), confidence[:nodes].copy(), match, sequence)


class _Index:
    """Memory of the C library, from `ls_KIND_new` to `ls_KIND_free`."""

    def __init__(self, kind: str, sizes: tuple[int, ...], lacking: str) -> None:
        """`lacking`: what there is not, in words, where there is no memory."""
        self._lib = KERNELS.library
        self._new, self._end = getattr(self._lib, f"ls_{kind}_new"), getattr(self._lib, f"ls_{kind}_free")
        self._sizes, self._lacking = sizes, lacking
        self._open()

    def _open(self) -> None:
        handle = ctypes.c_void_p()
        status = self._new(*self._sizes, ctypes.addressof(handle))
        if status:
            raise KernelError(f"{self._lacking} (status {status}).")
        self._handle = handle.value
        self._free = weakref.finalize(self, self._end, self._handle)
        self._length = 0  # tokens of the sequence that was looked at last

    def close(self) -> None:
        """Frees the memory; a second call does nothing, and what is asked later begins with an empty one."""
        self._free()
        self._open()


LONGEST = 4  # tokens of a context at most (`native/counts.c`)


class ContextCounts(_Index):
    """Knows what followed the last one to four tokens, and how often: of one conversation, or of many sequences. 64
    bytes a context, 16 MB at most; where it is full, what is rarest fades. Not thread-safe."""

    def __init__(self) -> None:
        super().__init__("counts", (), "no counts of contexts")
        self._found = GuessBuffer()

    def add(self, tokens: Tokens, times: int = 1) -> None:
        """Counts a sequence, int32[n] tokens of 0 or more. Raises KernelError if there is no memory."""
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        status = self._lib.ls_counts_add(self._handle, tokens.ctypes.data, len(tokens), times)
        if status:
            raise KernelError(f"{len(tokens)} tokens could not be counted (status {status}).")

    def remove(self, tokens: Tokens) -> None:
        self.add(tokens, -1)

    def guess(
        self,
        tokens: Tokens,
        unchanged: int,
        temperature: float,
        noise: Noise,
        max_nodes: int,
        max_depth: int,
        breadth: int = 1,
        past: ContextCounts | None = None,
    ) -> TreeGuess:
        """Makes int32[n] `tokens` the only sequence, then says what follows their last one to four, here and in `past`.
        The first `unchanged` tokens are not looked at; above temperature 0 the noise (Purpose.SAMPLE) ranks guesses, as
        the target will rank them. `max_nodes` of the tree: 64 at most; `breadth`: most guesses after a token, from 1 (a
        chain) to 8. Raises KernelError: a number is out of range, or no memory."""
        if not (0 <= unchanged <= len(tokens) and max_nodes >= 0 and max_depth >= 0 and temperature >= 0.0):
            raise KernelError(
                f"{unchanged} of {len(tokens)} tokens, {max_nodes} nodes of depth {max_depth}, at {temperature}."
            )
        tokens, scratch = np.ascontiguousarray(tokens, dtype=np.int32), KERNELS.scratch()
        length, unchanged = len(tokens), min(unchanged, self._length)
        scratch.put_noise(noise)
        memory = (self._handle, None if past is None else past._handle, scratch.workspace)
        context = (unchanged, tokens.ctypes.data, length, temperature, scratch.noise_address)
        sizes = (min(max_nodes, MOST_FOLLOWED), min(max_depth, MOST_FOLLOWED), breadth)
        guess = self._lib.suited(length - unchanged).ls_counts_guess
        status = guess(*memory, *context, *sizes, self._found.address)
        if status:
            raise KernelError(f"nothing can be guessed after {length} tokens (status {status}).")
        self._length = length
        return self._found.taken()


_AT_HAND = 64  # tokens that an index has a buffer for at hand: asking numpy for an address takes longer than a lookup
_TOKENS = 8  # bytes before the tokens in this buffer


class NgramIndex(_Index):
    """Knows where the last n tokens of a history (min_ngram <= n <= max_ngram) stood before. Memory and time per new
    token do not depend on the length of the history."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        """Raises KernelError unless 1 <= min_ngram <= max_ngram <= 64."""
        if not 1 <= min_ngram <= max_ngram <= 64:
            raise KernelError(f"n-grams of {min_ngram} to {max_ngram} tokens; 1 <= min <= max <= 64 is needed.")
        super().__init__("ngram", (min_ngram, max_ngram), f"no n-gram index for {(min_ngram, max_ngram)} tokens")
        self._buffer = np.zeros(2 + _AT_HAND, dtype=np.int32)  # found, match, then tokens in or out
        self._address = self._buffer.ctypes.data

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        """Makes the index that of int32[n] `tokens`, the whole history: truncates to the common prefix, appends. The
        first `unchanged` tokens are not looked at: the caller knows that they are those of the last call."""
        if not 0 <= unchanged <= len(tokens):
            raise KernelError(f"{unchanged} of {len(tokens)} tokens cannot be unchanged.")
        unchanged = min(unchanged, self._length)
        count, address = len(tokens) - unchanged, self._address + _TOKENS
        if count <= _AT_HAND:
            self._buffer[2 : 2 + count] = tokens[unchanged:]
        else:
            tail = np.ascontiguousarray(tokens[unchanged:], dtype=np.int32)
            address = tail.ctypes.data
        status = self._lib.suited(count).ls_ngram_sync(self._handle, unchanged, address, count)
        if status:
            raise KernelError(f"the n-gram index could not take {len(tokens)} tokens (status {status}).")
        self._length = len(tokens)

    def lookup(self, max_tokens: int) -> tuple[Tokens, int]:
        """What followed the longest matching suffix where it stood last before, int32[max_tokens], and the length of
        the match. A copy that reaches the end of the history goes on with what it has copied. Empty and 0 without a
        match."""
        if max_tokens < 0:
            raise KernelError(f"{max_tokens} tokens were asked for.")
        if max_tokens > len(self._buffer) - 2:
            self._buffer = np.zeros(2 + max_tokens, dtype=np.int32)
            self._address = self._buffer.ctypes.data
        at = self._address
        status = self._lib.brief.ls_ngram_lookup(self._handle, max_tokens, at + _TOKENS, at, at + 4)
        if status:
            raise KernelError(f"the n-gram index cannot look up {max_tokens} tokens (status {status}).")
        found, match = self._buffer[:2].tolist()
        return self._buffer[2 : 2 + found].copy(), match


class SuffixIndex(_Index):
    """Knows what followed, wherever the longest end of a context stood in many sequences of tokens (0 or more). A token
    comes or goes in O(depth + log n) and takes 16 bytes. Not thread-safe."""

    def __init__(self, depth: int = 64) -> None:
        """`depth`: longest match that is told from longer ones. Raises KernelError unless it is 1 to 64."""
        if not 1 <= depth <= 64:
            raise KernelError(f"a suffix index {depth} tokens deep; it must be 1 to 64.")
        super().__init__("suffix", (depth,), f"no suffix index {depth} tokens deep")
        self._followed = FollowedStruct()
        self._tree = GuessBuffer(self._followed)

    def add(self, sequences: Sequence[Tokens]) -> int:
        """Adds int32[n] sequences, called by the number returned and those after it. Raises KernelError."""
        tokens = np.ascontiguousarray(np.concatenate(sequences) if len(sequences) else NO_TOKENS, dtype=np.int32)
        lengths = np.array([len(one) for one in sequences], dtype=np.int64)
        first = ctypes.c_int32()
        status = self._lib.ls_suffix_add(
            self._handle, tokens.ctypes.data, lengths.ctypes.data, len(lengths), ctypes.addressof(first)
        )
        if status:
            raise KernelError(f"the suffix index could not take {len(tokens)} tokens (status {status}).")
        self._length = len(sequences[-1]) if len(sequences) else self._length
        return first.value

    def remove(self, sequence: int) -> None:
        """Takes a sequence out. Raises KernelError if there is none of that number."""
        if self._lib.ls_suffix_remove(self._handle, sequence):
            raise KernelError(f"the suffix index has no sequence {sequence}.")
        self._length = 0  # it may have been the newest

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
    ) -> TreeGuess:
        """All that a drafter does in a pass: makes the newest sequence (begun if there is none) int32[n] `tokens`, then
        gives the better of two guesses after them, at most 64 nodes, best first. The places of the longest match vote
        for what comes next, up to 32 of them, evenly spaced among all; of equals the one seen last wins. `other` is
        searched, too, where `least` tokens match, and preferred if it promises more; its sequences do not run on.
        Raises KernelError: a number is out of range, a negative token, or no memory."""
        if not 0 <= unchanged <= len(tokens) or max_nodes < 0 or max_depth < 0:
            raise KernelError(f"{unchanged} of {len(tokens)} tokens, {max_nodes} nodes of depth {max_depth}.")
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        length, found = len(tokens), self._followed
        unchanged = min(unchanged, self._length)
        others = (None if other is None else other._handle, least)
        sizes = (min(max_nodes, MOST_FOLLOWED), min(max_depth, MOST_FOLLOWED), tree)
        follow = self._lib.suited(length - unchanged).ls_suffix_follow
        status = follow(self._handle, *others, unchanged, tokens.ctypes.data, length, *sizes, self._tree.address)
        if status:
            raise KernelError(f"the suffix index could not take {length} tokens (status {status}).")
        self._length = length
        return self._tree.taken(found.match, found.sequence)
