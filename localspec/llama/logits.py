"""Where a context's last pass left its logits."""

from __future__ import annotations

import numpy as np

from localspec.llama import lib
from localspec.llama.batch import Part
from localspec.llama.handle import Handle
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

    def collect(self) -> None:
        """Waits for the pass that was launched last; its rows can be read then."""
        self._first = np.uintp(lib.pointer_value(self._api.llama_get_logits(self._handle.pointer)))

    def of(self, part: Part, n_vocab: int, keep: object) -> LogitRows:
        """The last history token's row, then each node's in draft order; valid until the next pass.

        Args:
            part: of the pass that was collected.
            n_vocab: how many numbers of a row count.
            keep: owns the memory.
        """
        first, count = part.first_output, part.outputs
        pointers = self._offsets[first : first + count] + self._first
        if part.tree is not None:
            pointers[1:][part.tree.order] = pointers[1:].copy()
        return LogitRows(pointers, n_vocab, keep)
