"""Matrix times vector with weights in 8 bits."""

from __future__ import annotations

import numpy as np

from localspec.native.library import Int8Matrix
from localspec.types import Float32Array

_INPUT_TOP = 16383.0
_AT_ONCE = 4096


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
