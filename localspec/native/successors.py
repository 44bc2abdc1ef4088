"""Token recycling in C."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from localspec.errors import KernelError
from localspec.native.library import GuessStruct, Library
from localspec.native.scratch import Scratch
from localspec.types import NO_TOKENS, Float32Array, LogitRows, Noise, Tokens

SUCCESSORS = 8
"""Tokens kept after each token."""
MOST_NODES = 64
"""Of a guess."""


class Guess(NamedTuple):
    """A tree of guesses, best first."""

    tokens: Tokens
    parents: Tokens
    confidence: Float32Array
    """Chance of each, given its parent."""


NO_GUESS = Guess(NO_TOKENS, NO_TOKENS, np.empty(0, dtype=np.float32))


class SuccessorIndex:
    """Handle of an `ls_successors`."""

    def __init__(self, lib: Library, scratch: Callable[[], Scratch]) -> None:
        """`scratch`: of the thread that calls."""
        self._lib, self._scratch = lib, scratch
        self._found = found = GuessStruct()
        self._address = ctypes.addressof(found)
        self._views = (
            np.frombuffer(found.tokens, dtype=np.int32),
            np.frombuffer(found.parents, dtype=np.int32),
            np.frombuffer(found.confidence, dtype=np.float32),
        )
        self._open()

    def _open(self) -> None:
        """Begins an empty one; on a failure what there was stays."""
        handle = ctypes.c_void_p()
        status = self._lib.ls_successors_new(ctypes.addressof(handle))
        if status:
            raise KernelError(f"no index of successors (status {status}).")
        self._handle = handle.value
        self._free = weakref.finalize(self, self._lib.ls_successors_free, self._handle)

    def clear(self) -> None:
        free = self._free
        self._open()
        free()

    def learn(self, rows: LogitRows, indices: Sequence[int], tokens: Sequence[int]) -> None:
        scratch, count = self._scratch(), len(tokens)
        scratch.grow(count)
        scratch.pointers[:count] = [rows.pointer(index) for index in indices]
        scratch.tokens[:count] = tokens
        status = self._lib.ls_successors_learn(
            self._handle,
            scratch.workspace,
            scratch.pointers_address,
            rows.n_vocab,
            scratch.draft.tokens,
            count,
        )
        if status:
            raise KernelError(f"the index of successors could not take {count} rows (status {status}).")

    def guess(
        self, token: int, temperature: float, noise: Noise, position: int, max_nodes: int, max_depth: int, breadth: int
    ) -> Guess:
        scratch = self._scratch()
        scratch.put_noise(noise)
        status = self._lib.brief.ls_successors_guess(
            self._handle,
            scratch.workspace,
            token,
            temperature,
            scratch.noise_address,
            position & 0xFFFFFFFF,
            max_nodes,
            max_depth,
            breadth,
            self._address,
        )
        if status:
            raise KernelError(f"the index of successors cannot guess (status {status}).")
        nodes: int = self._found.nodes
        if not nodes:
            return NO_GUESS
        tokens, parents, confidence = self._views
        return Guess(tokens[:nodes].copy(), parents[:nodes].copy(), confidence[:nodes].copy())

    def memory_bytes(self) -> int:
        return int(self._lib.ls_successors_bytes(self._handle))
