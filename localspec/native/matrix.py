"""Weights in 8 bits, as drafter heads hold them where llama.cpp does not compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localspec.types import Float32Array

_AT_ONCE = 4096
"""Rows that are rounded at a time."""


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A matrix in a byte a weight: entry (i, k) is `values[i, k] * scales[i]`."""

    values: npt.NDArray[np.int8]
    """int8[rows, columns], C-contiguous."""
    scales: Float32Array
    """float32[rows]."""

    @staticmethod
    def of(weights: npt.NDArray[np.floating]) -> Int8Matrix:
        """float[rows, columns], rounded; a row is 0 where it holds nothing else."""
        return Int8Matrix.in_parts(weights.shape, lambda start, stop: weights[start:stop])

    @staticmethod
    def in_parts(shape: tuple[int, ...], read: Callable[[int, int], npt.NDArray[np.floating]]) -> Int8Matrix:
        """The same of weights that are read in parts, so that a large matrix takes little beside itself.

        Args:
            shape: (rows, columns).
            read: float[stop - start, columns] of the rows from `start` on.
        """
        values, scales = np.empty(shape, dtype=np.int8), np.empty(shape[0], dtype=np.float32)
        for start in range(0, shape[0], _AT_ONCE):
            part = np.asarray(read(start, min(start + _AT_ONCE, shape[0])), dtype=np.float32)
            top = np.abs(part).max(axis=1)
            scales[start : start + len(part)] = top / np.float32(127)
            values[start : start + len(part)] = np.rint(part * (127.0 / np.where(top > 0, top, 1.0))[:, None])
        return Int8Matrix(values, scales)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.values), self.values.shape[1]

    def rows(self, ids: npt.NDArray[np.integer]) -> Float32Array:
        """float32[n, columns] of these rows: an embedding."""
        return np.asarray(self.values[ids] * self.scales[ids, None], dtype=np.float32)
