"""Prompt lookup in C."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from localspec.errors import KernelError
from localspec.native.kernels import KERNELS
from localspec.types import Tokens

_AT_HAND = 64
"""Tokens that an index has a buffer for at hand: asking numpy for an address takes longer than a lookup."""
_TOKENS = 8
"""Bytes before the tokens in this buffer."""


class NgramIndex:
    """Knows where the last n tokens of a history (min_ngram <= n <= max_ngram) stood before.

    Memory and time per new token do not depend on the length of the history.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        """Raises KernelError unless 1 <= min_ngram <= max_ngram <= 64."""
        if not 1 <= min_ngram <= max_ngram <= 64:
            raise KernelError(f"n-grams of {min_ngram} to {max_ngram} tokens; 1 <= min <= max <= 64 is needed.")
        self._lib = KERNELS.library
        self._sizes = (min_ngram, max_ngram)
        self._buffer = np.zeros(2 + _AT_HAND, dtype=np.int32)  # found, match, then tokens in or out
        self._address = self._buffer.ctypes.data
        self._open()

    def _open(self) -> None:
        handle = ctypes.c_void_p()
        status = self._lib.ls_ngram_new(*self._sizes, ctypes.addressof(handle))
        if status:
            raise KernelError(f"no n-gram index for {self._sizes} tokens (status {status}).")
        self._handle = handle.value
        self._free = weakref.finalize(self, self._lib.ls_ngram_free, self._handle)
        self._length = 0

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        """Makes the index that of int32[n] `tokens`, the whole history: truncates to the common prefix, appends.

        The first `unchanged` tokens are not looked at: the caller knows that they are those of the last call.
        """
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
        """What followed the longest matching suffix where it stood last before, and the length of the match.

        int32[max_tokens]; a copy that reaches the end of the history goes on with what it has copied. Empty and 0
        if nothing matches.
        """
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

    def close(self) -> None:
        """Frees the memory; a second call does nothing, and a later sync starts anew."""
        self._free()
        self._open()
