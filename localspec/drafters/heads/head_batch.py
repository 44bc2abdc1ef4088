"""A llama_batch for heads: rows of a token, of a state of the target, or of both, filled through numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.llama.library import lib
from localspec.types import Float32Array, Tokens

_POSITION_SECTIONS = 4
"""Position numbers of one row for models that rotate keys by sections (M-RoPE). Three are equal, the last is 0."""


class HeadBatch:
    """Owns the arrays that llama.cpp reads; each call of `of` overwrites the rows of the call before."""

    def __init__(self, capacity: int, sequences: int, sections: bool = False) -> None:
        """
        Args:
            capacity: most rows.
            sequences: sequence ids are below this.
            sections: whether the model turns keys by sections, so that rows of states need four numbers each.
        """
        self.capacity = capacity
        self._sections = sections
        self._token = np.zeros(capacity, dtype=np.int32)
        self._position = np.zeros(capacity * _POSITION_SECTIONS, dtype=np.int32)
        self._id_count = np.ones(capacity, dtype=np.int32)
        self._id_pointer = np.zeros(capacity + 1, dtype=np.uintp)
        self._output = np.zeros(capacity, dtype=np.int8)
        self._ids = np.arange(sequences, dtype=np.int32)
        self._states = np.zeros(0, dtype=np.float32)
        self._struct: Any = lib.api().llama_batch(n_tokens=0)
        self._kinds = dict(self._struct._fields_)
        arrays = {"pos": self._position, "n_seq_id": self._id_count, "seq_id": self._id_pointer, "logits": self._output}
        for name, array in arrays.items():
            self._point(name, array)

    def of(
        self,
        positions: Sequence[int] | Tokens,
        ids: Sequence[tuple[int, int]],
        output: bool,
        *,
        tokens: Sequence[int] | Tokens | None = None,
        states: Float32Array | None = None,
    ) -> Any:
        """The llama_batch of one row for each position.

        Args:
            positions: of the rows.
            ids: of each row, its first sequence id and how many follow one another.
            output: whether all rows are outputs, or none is.
            tokens: of the rows; None = they have none.
            states: float32[n, width]; None = they have none.
        """
        count = len(positions)
        self._position[:count] = positions
        if self._sections and tokens is None:
            self._position[count : 3 * count] = np.tile(self._position[:count], 2)
            self._position[3 * count : 4 * count] = 0
        for row, (first, many) in enumerate(ids):
            self._id_pointer[row], self._id_count[row] = self._ids.ctypes.data + 4 * first, many
        self._output[:count] = output
        if tokens is not None:
            self._token[:count] = tokens
        if states is not None:
            self._states = np.ascontiguousarray(states, dtype=np.float32)
        self._point("token", None if tokens is None else self._token)
        self._point("embd", None if states is None else self._states)
        self._struct.n_tokens = count
        return self._struct

    def _point(self, name: str, array: Any) -> None:
        setattr(self._struct, name, ctypes.cast(0 if array is None else array.ctypes.data, self._kinds[name]))
