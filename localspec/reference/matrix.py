"""Matrix times vector with weights in 8 bits: what drafter heads compute with where llama.cpp does not do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localspec.types import Float32Array

_INPUT_TOP = 16383.0
_AT_ONCE = 4096


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


def matvec(matrix: Int8Matrix, inputs: Float32Array, threads: int = 1) -> Float32Array:
    del threads  # numpy's own
    tops = np.abs(inputs).max(axis=1).astype(np.float64)
    finite = np.isfinite(tops)
    safe = np.where(finite & (tops > 0), tops, 1.0)
    with np.errstate(invalid="ignore"):
        rounded = np.rint(inputs.astype(np.float64) * (_INPUT_TOP / safe)[:, None])
    rounded[~finite] = 0.0
    steps = np.where(finite, tops / _INPUT_TOP, np.nan)
    out = np.empty((len(inputs), len(matrix.values)), dtype=np.float32)
    for start in range(0, len(matrix.values), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        sums = rounded @ matrix.values[part].astype(np.float64).T  # exact: integers far below 2^53
        out[:, part] = sums * (matrix.scales[part].astype(np.float64) * steps[:, None])
    return out
