"""Where a context's last pass left its logits."""

from __future__ import annotations

import numpy as np

from localspec.llama.library import lib
from localspec.llama.library.batch import Part
from localspec.llama.library.handle import Handle
from localspec.native.gpu import DeviceRows
from localspec.types import LogitRows


class Logits:
    """Of one context: rows of its last pass."""

    def __init__(self, handle: Handle, n_vocab: int, most_rows: int) -> None:
        """
        Args:
            handle: whose passes these are.
            n_vocab: numbers in a row.
            most_rows: of a pass.
        """
        self._api, self._handle = lib.api(), handle
        self._offsets = np.arange(most_rows, dtype=np.uintp) * np.uintp(4 * n_vocab)
        self._first = np.uintp(0)

    def collect(self, count: int) -> None:
        """Waits for the pass that was launched last; its first `count` rows with logits can be read then."""
        tap, buffer = self._handle.logits_tap, lib.pointer_value(self._api.llama_get_logits(self._handle.pointer))
        self._first = np.uintp(buffer if tap is None else tap.rows(count, buffer))

    def of(self, part: Part, n_vocab: int, keep: object) -> LogitRows:
        """The last history token's row, then the nodes' in draft order, as many as are wanted; until the next pass.

        Args:
            part: of the pass that was collected.
            n_vocab: how many numbers of a row count.
            keep: owns the memory.
        """
        first = part.first_output
        pointers = self._offsets[first : first + part.wanted] + self._first
        if part.tree is not None:
            pointers[1:][part.tree.order] = pointers[1:].copy()
        tap = self._handle.logits_tap
        if tap is not None and tap.gpu is not None:
            return DeviceRows(pointers, n_vocab, tap.fetch, tap.gpu, keep)
        return LogitRows(pointers, n_vocab, keep)
