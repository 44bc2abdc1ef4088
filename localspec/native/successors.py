"""Token recycling in C."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from localspec.errors import KernelError
from localspec.native.binding import NativeKernels
from localspec.native.guess import Guess, GuessBuffer
from localspec.native.kernels import KERNELS
from localspec.types import LogitRows, Noise

SUCCESSORS = 8
"""Tokens kept after each token."""
MOST_NODES = 64
"""Of a guess."""


class SuccessorIndex:
    """Knows the likeliest tokens after each token (`SUCCESSORS` of them), as rows of logits said last.

    64 bytes a token of the vocabulary: 9.7 MB for 151,936, and never more; memory is taken only as tokens are met.
    """

    def __init__(self, on: NativeKernels = KERNELS) -> None:
        """`on`: whose instruction set computes."""
        self._lib, self._scratch = on.library, on.scratch
        self._found = GuessBuffer()
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
        """Keeps nothing, and frees the memory."""
        free = self._free
        self._open()
        free()

    def learn(self, rows: LogitRows, indices: Sequence[int], tokens: Sequence[int]) -> None:
        """rows[indices[i]] follows tokens[i], one after the other: what it says takes the place of what was kept.

        Kept are the likeliest tokens and their shares of the 32 likeliest. Rows that hold NaN or +inf or exclude every
        token, and tokens outside the vocabulary, are passed over. Rows of another length make it forget everything.

        Raises:
            KernelError: not as many tokens as indices, no such row, or no memory.
        """
        if len(indices) != len(tokens) or not all(0 <= index < len(rows) for index in indices):
            raise KernelError(f"rows {list(indices)} of {len(rows)} came with {len(tokens)} tokens.")
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
        self,
        token: int,
        temperature: float,
        noise: Noise,
        position: int,
        max_nodes: int,
        max_depth: int,
        breadth: int = 1,
    ) -> Guess:
        """A tree of guesses after a token: the next is always the one that is likeliest to be reached.

        Args:
            token: the last one there is.
            temperature: 0 or more; above 0 the noise (Purpose.SAMPLE) ranks what is kept, as the target will rank it.
            noise: of the request.
            position: absolute, of the first guess.
            max_nodes: of the tree; 64 at most.
            max_depth: most guesses in a row.
            breadth: most guesses after a token, from 1 (a chain) to `SUCCESSORS`.

        Raises:
            KernelError: a number is out of range.
        """
        if max_nodes < 0 or max_depth < 0 or not 1 <= breadth <= SUCCESSORS:
            raise KernelError(f"{max_nodes} nodes of depth {max_depth} and {breadth} after each were asked for.")
        if not temperature >= 0.0:
            raise KernelError(f"the temperature is {temperature}; it must be 0 or more.")
        max_nodes, max_depth = min(max_nodes, MOST_NODES), min(max_depth, MOST_NODES)
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
            self._found.address,
        )
        if status:
            raise KernelError(f"the index of successors cannot guess (status {status}).")
        return self._found.taken()
