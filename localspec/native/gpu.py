"""A GPU that runs the kernel of native/gpu: preselection of logits in its memory."""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.native.library import NO_MEMORY, Library, open_library
from localspec.types import Float32Array, Tokens

REQUEST_WORDS = 10
"""LS_REQUEST_WORDS."""
MOST_PATCHED = 192
"""LS_MOST_PATCHED, tokens."""
LIST_ROOM = 512
"""LS_LIST_ROOM, entries."""
METAL = -1
"""LS_METAL, the ordinal of a Mac's GPU."""
_REASON_ROOM = 256
"""LS_REASON_ROOM, bytes."""
_PATCHED = 2
"""LS_REQUEST_PATCHED, the word of a request that counts patched tokens."""

UInt32Array: TypeAlias = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """What ls_list_request asks of the kernel for the rows of one draft."""

    words: UInt32Array = field(default_factory=lambda: np.zeros(REQUEST_WORDS, dtype=np.uint32))
    """uint32[REQUEST_WORDS]."""
    patched: Tokens = field(default_factory=lambda: np.zeros(MOST_PATCHED, dtype=np.int32))
    """int32[MOST_PATCHED], tokens with a bias or a penalty; `words` says how many."""

    def addresses(self) -> tuple[int, int]:
        """Of both, for C."""
        return int(self.words.ctypes.data), int(self.patched.ctypes.data)


@dataclass(frozen=True, slots=True)
class Lists:
    """Entries of rows that can matter."""

    found: npt.NDArray[np.int32]
    """int32[rows], entries of each; above LIST_ROOM a list is cut off."""
    tokens: npt.NDArray[np.int32]
    """int32[rows, LIST_ROOM]."""
    values: Float32Array
    """float32[rows, LIST_ROOM], raw logits."""


class Gpu:
    """The kernel on one device. Serves one thread at a time."""

    def __init__(self, ordinal: int, driver: Path | None = None, library: Path | None = None) -> None:
        """Finds the driver, loads the kernel and runs its self-test on the device.

        Args:
            ordinal: CUDA's number of the device, from 0 on, or METAL.
            driver: library of the driver; None = the system's.
            library: the C library; None = the one that is installed.

        Raises:
            KernelError: why this device cannot serve, in a sentence. The sentence is empty where the machine has no
                driver.
        """
        self._lib: Library = open_library(library)
        handle, reason = ctypes.c_void_p(), ctypes.create_string_buffer(_REASON_ROOM)
        path = None if driver is None else os.fsencode(driver)
        status = self._lib.ls_gpu_open(path, ordinal, ctypes.addressof(handle), ctypes.addressof(reason))
        if status == NO_MEMORY and not reason.value:
            raise KernelError("memory ran out while a GPU was opened.")
        if status:
            raise KernelError(reason.value.decode(errors="replace"))
        self._handle = int(handle.value or 0)
        self.failure = ""
        """Why this device serves no more, in a sentence; empty while it does."""
        self._close = weakref.finalize(self, self._lib.ls_gpu_close, self._handle)

    @property
    def serves(self) -> bool:
        """Whether no call has failed."""
        return not self.failure and self._close.alive

    def close(self) -> None:
        """Gives everything on the device back; may be called again."""
        self._close()

    def lists(self, logits: int, rows: int, request: ListRequest, positions: UInt32Array) -> Lists:
        """The entries of rows that `request` asks for.

        Args:
            logits: address in the device's memory of float32[rows, n_vocab]; no pass may be writing there.
            rows: 1 or more.
            request: for a vocabulary of n_vocab.
            positions: uint32[rows], of the token that each row draws.

        Raises:
            KernelError: the device failed, or `logits` is not in its memory. It serves no more then.
        """
        found = np.zeros(rows, dtype=np.uint32)
        tokens = np.empty((rows, LIST_ROOM), dtype=np.int32)
        values = np.empty((rows, LIST_ROOM), dtype=np.float32)
        status = self._lib.ls_gpu_lists(
            self._open_handle(),
            logits,
            rows,
            *request.addresses(),
            np.ascontiguousarray(positions, dtype=np.uint32).ctypes.data,
            found.ctypes.data,
            tokens.ctypes.data,
            values.ctypes.data,
        )
        self._check(status)
        return Lists(found.astype(np.int32), tokens, values)

    def _open_handle(self) -> int:
        if not self._close.alive:
            raise KernelError("this GPU is closed.")
        return self._handle

    def _check(self, status: int) -> None:
        if status:
            said = self._lib.ls_gpu_reason(self._handle).decode(errors="replace")
            self.failure = f"{said} Rows are verified on the CPU."
            raise KernelError(said, "Rows are verified on the CPU.")
