"""Rows of logits in a GPU's memory, and a verdict that needs only the entries of them that can win."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.native.gpu import Gpu, ListRequest, Lists
from localspec.native.library import NEED_ROW
from localspec.types import Float32Array, LogitRows

Fetch: TypeAlias = Callable[[int, Float32Array], None]
"""Copies float32 numbers from this address of the device into the whole of an array."""
_ROW = np.dtype([("logits", np.uintp), ("n", np.int32), ("tokens", np.uintp), ("values", np.uintp)], align=True)
"""ls_row."""


class DeviceRows(LogitRows):
    """Rows of logits in a device's memory. A row is copied to the host when something reads it, and once.

    Valid until the next pass of the context that made them.
    """

    __slots__ = ("_fetch", "_here", "addresses", "gpu")

    def __init__(
        self,
        addresses: Sequence[int] | npt.NDArray[np.uintp],
        n_vocab: int,
        fetch: Fetch,
        gpu: Gpu | None = None,
        keep: object = None,
    ) -> None:
        """
        Args:
            addresses: uintp[n], of each row's first float32 in the device's memory.
            n_vocab: numbers in a row.
            fetch: copies from there.
            gpu: what preselects on this device; None = rows are always copied whole.
            keep: owns the device's memory.
        """
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

    def first(self, count: int) -> DeviceRows:
        return DeviceRows(self.addresses[:count], self.n_vocab, self._fetch, self.gpu, self)

    def copied(self) -> int:
        """How many rows the host has."""
        return len(self._here)


def verify_rows(
    lib: ctypes.CDLL, workspace: int, rows: DeviceRows, count: int, call: tuple[Any, ...], out: tuple[int, int, int]
) -> int:
    """ls_verify on rows of a device: by lists of their best entries, and by whole rows where C asks for those.

    Args:
        lib: the C library.
        workspace: of this thread.
        rows: of the last pass.
        count: 1 + the nodes of the draft.
        call: the arguments of ls_list_request from n_vocab to rule.
        out: the addresses of `accepted`, `n_accepted` and `next_token`.

    Returns:
        The ls_status of ls_verify.
    """
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
    """Lists of the first `count` rows as they follow one another on the device, and where each row is among them.

    None where lists cannot decide, and where the device does not serve.
    """
    gpu = rows.gpu
    order = None if gpu is None or not gpu.serves else _order(rows, count)
    if gpu is None or order is None:
        return None
    request, positions = ListRequest(), np.zeros(count, dtype=np.uint32)
    if lib.ls_list_request(workspace, *call, *request.addresses(), positions.ctypes.data):
        return None  # LS_NEED_ROW, or something is wrong, which the verdict will say
    placed = np.empty_like(positions)
    placed[order] = positions
    try:
        return gpu.lists(int(rows.addresses[:count].min()), count, request, placed), order
    except KernelError:
        return None  # `gpu` says why, and serves no more


def _order(rows: DeviceRows, count: int) -> npt.NDArray[np.intp] | None:
    """Where each of the first `count` rows is among them on the device; None if others stand between them."""
    addresses = rows.addresses[:count]
    order, rest = np.divmod(addresses - addresses.min(), np.uintp(4 * rows.n_vocab))
    if rest.any() or not np.array_equal(np.sort(order), np.arange(count)):
        return None
    places: npt.NDArray[np.intp] = order.astype(np.intp)
    return places
