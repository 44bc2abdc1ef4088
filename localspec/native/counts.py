"""Counts of what followed one to four tokens, in C."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from localspec.errors import KernelError
from localspec.native.guess import Guess, GuessBuffer
from localspec.native.kernels import KERNELS
from localspec.native.library import MOST_FOLLOWED
from localspec.types import Noise, Tokens

LONGEST = 4
"""Tokens of a context at most (`native/counts.c`)."""


class ContextCounts:
    """Knows what followed the last one to four tokens, and how often: of one conversation, or of many sequences.

    64 bytes a context, 16 MB at most; where it is full, what is rarest fades. Not thread-safe.
    """

    def __init__(self) -> None:
        self._lib, self._length = KERNELS.library, 0
        self._found = GuessBuffer()
        self._open()

    def _open(self) -> None:
        handle = ctypes.c_void_p()
        status = self._lib.ls_counts_new(ctypes.addressof(handle))
        if status:
            raise KernelError(f"no counts of contexts (status {status}).")
        self._handle = handle.value
        self._free = weakref.finalize(self, self._lib.ls_counts_free, self._handle)

    def add(self, tokens: Tokens) -> None:
        """Counts a sequence, int32[n] tokens of 0 or more. Raises KernelError if there is no memory."""
        self._count(tokens, 1)

    def remove(self, tokens: Tokens) -> None:
        """Takes out a sequence that was added: nothing of it is left."""
        self._count(tokens, -1)

    def _count(self, tokens: Tokens, times: int) -> None:
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        status = self._lib.ls_counts_add(self._handle, tokens.ctypes.data, len(tokens), times)
        if status:
            raise KernelError(f"{len(tokens)} tokens could not be counted (status {status}).")

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
    ) -> Guess:
        """Makes int32[n] `tokens` the only sequence, then says what follows their last one to four, here and in `past`.

        Args:
            tokens: a conversation, whole.
            unchanged: the first so many are not looked at.
            temperature: 0 or more; above 0 the noise (Purpose.SAMPLE) ranks guesses, as the target will rank them.
            noise: of the request.
            max_nodes: of the tree; 64 at most.
            max_depth: most guesses in a row.
            breadth: most guesses after a token, from 1 (a chain) to 8.
            past: other answers.

        Raises:
            KernelError: a number is out of range, or no memory.
        """
        if not (0 <= unchanged <= len(tokens) and max_nodes >= 0 and max_depth >= 0 and temperature >= 0.0):
            raise KernelError(
                f"{unchanged} of {len(tokens)} tokens, {max_nodes} nodes of depth {max_depth}, at {temperature}."
            )
        tokens, scratch = np.ascontiguousarray(tokens, dtype=np.int32), KERNELS.scratch()
        length, unchanged = len(tokens), min(unchanged, self._length)
        scratch.put_noise(noise)
        status = self._lib.suited(length - unchanged).ls_counts_guess(
            self._handle,
            None if past is None else past._handle,
            scratch.workspace,
            unchanged,
            tokens.ctypes.data,
            length,
            temperature,
            scratch.noise_address,
            min(max_nodes, MOST_FOLLOWED),
            min(max_depth, MOST_FOLLOWED),
            breadth,
            self._found.address,
        )
        if status:
            raise KernelError(f"nothing can be guessed after {length} tokens (status {status}).")
        self._length = length
        return self._found.taken()

    def close(self) -> None:
        """Frees the memory; a second call does nothing, and what is asked later sees empty counts."""
        self._free()
        self._open()
        self._length = 0
