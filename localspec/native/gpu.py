"""A GPU that runs the kernel of native/gpu: preselection of logits in its memory."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.native.library import NEED_ROW, NO_MEMORY, Library, open_library
from localspec.types import Float32Array, LogitRows, Tokens

REQUEST_WORDS = 10  # LS_REQUEST_WORDS
MOST_PATCHED = 192  # LS_MOST_PATCHED, tokens
LIST_ROOM = 512  # LS_LIST_ROOM, entries
METAL = -1  # LS_METAL, the ordinal of a Mac's GPU
REASON_ROOM = 256  # LS_REASON_ROOM, bytes

UInt32Array: TypeAlias = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """What ls_list_request asks of the kernel for the rows of one draft."""

    words: UInt32Array = field(default_factory=lambda: np.zeros(REQUEST_WORDS, dtype=np.uint32))
    """uint32[REQUEST_WORDS]."""
    patched: Tokens = field(default_factory=lambda: np.zeros(MOST_PATCHED, dtype=np.int32))
    """int32[MOST_PATCHED], tokens with a bias or a penalty; `words` says how many."""

    def addresses(self) -> tuple[int, int]:
        return int(self.words.ctypes.data), int(self.patched.ctypes.data)


@dataclass(frozen=True, slots=True)
class Lists:
    found: npt.NDArray[np.int32]  # int32[rows], entries of each; above LIST_ROOM a list is cut off
    tokens: npt.NDArray[np.int32]  # int32[rows, LIST_ROOM]
    values: Float32Array  # float32[rows, LIST_ROOM], raw logits


class Gpu:
    """The kernel on one device. Serves one thread at a time."""

    def __init__(self, ordinal: int, driver: Path | None = None) -> None:
        """Finds the driver, loads the kernel and runs its self-test on a device: CUDA's number of it, or METAL.
        `driver`: file of the GPU's driver; None = the system's.
        Raises KernelError: why this device cannot serve; empty where the machine has no driver."""
        self._lib: Library = open_library()
        handle, reason = ctypes.c_void_p(), ctypes.create_string_buffer(REASON_ROOM)
        path = None if driver is None else os.fsencode(driver)
        status = self._lib.ls_gpu_open(path, ordinal, ctypes.addressof(handle), ctypes.addressof(reason))
        if status == NO_MEMORY and not reason.value:
            raise KernelError("memory ran out while a GPU was opened.")
        if status:
            raise KernelError(reason.value.decode(errors="replace"))
        self._handle = int(handle.value or 0)
        self.failure = ""  # why this device serves no more, in a sentence; empty while it does
        self.close = weakref.finalize(self, self._lib.ls_gpu_close, self._handle)

    @property
    def serves(self) -> bool:
        return not self.failure and self.close.alive

    def lists(self, logits: int, rows: int, request: ListRequest, positions: UInt32Array) -> Lists:
        """The entries of rows that `request` asks for. `logits` is the address on the device of float32[rows, n_vocab],
        where no pass may be writing; `positions` are uint32[rows], of the token that each row draws."""
        if not self.close.alive:
            raise KernelError("this GPU is closed.")
        found = np.zeros(rows, dtype=np.uint32)
        tokens = np.empty((rows, LIST_ROOM), dtype=np.int32)
        values = np.empty((rows, LIST_ROOM), dtype=np.float32)
        arrays = (np.ascontiguousarray(positions, dtype=np.uint32), found, tokens, values)
        addresses = (*request.addresses(), *(array.ctypes.data for array in arrays))
        status = self._lib.ls_gpu_lists(self._handle, logits, rows, *addresses)
        if status:
            said = self._lib.ls_gpu_reason(self._handle).decode(errors="replace")
            self.failure = f"{said} Rows are verified on the CPU."
            raise KernelError(said, "Rows are verified on the CPU.")
        return Lists(found.astype(np.int32), tokens, values)


# Rows of logits in a GPU's memory, and a verdict that needs only the entries of them that can win.

Fetch: TypeAlias = Callable[[int, Float32Array], None]  # from this address of the device into an array
_ROW = np.dtype([("logits", np.uintp), ("n", np.int32), ("tokens", np.uintp), ("values", np.uintp)], align=True)
"""ls_row."""


class DeviceRows(LogitRows):
    """Rows of logits in a device's memory, until the next pass; each is copied to the host when it is read, once."""

    __slots__ = ("_fetch", "_here", "addresses", "gpu")

    def __init__(
        self,
        addresses: Sequence[int] | npt.NDArray[np.uintp],
        n_vocab: int,
        fetch: Fetch,
        gpu: Gpu | None = None,
        keep: object = None,
    ) -> None:
        """`addresses`: uintp[n] on the device; `fetch` copies from there; `keep` owns the memory; `gpu` preselects."""
        super().__init__([], n_vocab, keep)
        self.addresses = np.asarray(addresses, dtype=np.uintp)
        self.gpu = gpu
        self._fetch = fetch
        self._here: dict[int, Float32Array] = {}

    @property
    def pointers(self) -> npt.NDArray[np.uintp]:
        """uintp[n], of all rows' copies on the host."""
        return np.array([self.pointer(index) for index in range(len(self))], dtype=np.uintp)

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, index: int) -> Float32Array:
        if index < 0:
            index += len(self)
        if index not in self._here:
            row = np.empty(self.n_vocab, dtype=np.float32)
            self._fetch(int(self.addresses[index]), row)
            self._here[index] = row
        return self._here[index]

    def pointer(self, index: int) -> int:
        return int(self[index].ctypes.data)


def verify_rows(
    lib: ctypes.CDLL, workspace: int, rows: DeviceRows, count: int, call: tuple[Any, ...], out: tuple[int, int, int]
) -> int:
    """ls_verify on rows of a device, 1 + the nodes of the draft: by lists of their best entries, and by whole rows
    where C asks for those. `call`: the arguments of ls_list_request from n_vocab to rule; `out`: the addresses of
    `accepted`, `n_accepted` and `next_token`."""
    table = np.zeros(count, dtype=_ROW)
    lists = _lists(lib, workspace, rows, count, call)
    if lists is None:
        table["logits"] = [rows.pointer(index) for index in range(count)]
    else:
        found, order = lists
        table["n"] = found.found[order]
        table["tokens"] = found.tokens.ctypes.data + order * found.tokens.strides[0]
        table["values"] = found.values.ctypes.data + order * found.values.strides[0]
    fault = np.zeros(2, dtype=np.int32)
    while True:
        status = int(lib.ls_verify_rows(workspace, table.ctypes.data, *call, *out))
        if status != NEED_ROW:
            return status
        lib.ls_fault(workspace, fault.ctypes.data, fault.ctypes.data + 4)
        row = int(fault[0])
        if table["logits"][row]:
            raise KernelError(f"the C library asks twice for row {row}.")
        table["logits"][row] = rows.pointer(row)


def _lists(
    lib: ctypes.CDLL, workspace: int, rows: DeviceRows, count: int, call: tuple[Any, ...]
) -> tuple[Lists, npt.NDArray[np.intp]] | None:
    """Lists of the first `count` rows as they follow one another on the device, and where each row is among them. None
    where lists cannot decide, where others stand between the rows, and where the device does not serve."""
    gpu, addresses = rows.gpu, rows.addresses[:count]
    if gpu is None or not gpu.serves:
        return None
    places, rest = np.divmod(addresses - addresses.min(), np.uintp(4 * rows.n_vocab))
    if rest.any() or not np.array_equal(np.sort(places), np.arange(count)):
        return None
    order: npt.NDArray[np.intp] = places.astype(np.intp)
    request, positions = ListRequest(), np.zeros(count, dtype=np.uint32)
    if lib.ls_list_request(workspace, *call, *request.addresses(), positions.ctypes.data):
        return None  # LS_NEED_ROW, or something is wrong, which the verdict will say
    placed = np.empty_like(positions)
    placed[order] = positions
    try:
        return gpu.lists(int(addresses.min()), count, request, placed), order
    except KernelError:
        return None  # `gpu` says why, and serves no more
