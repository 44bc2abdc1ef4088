"""Seconds of passes by width and cached length, interpolated from a table with gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from localspec.types import Float64Array


class CostTable:
    """Costs that were estimated from a model's header, or timed beforehand.

    A width that is not in the table costs as much as the next wider one of the table; beyond the widest, cost grows in
    proportion to rows. Between lengths seconds are interpolated linearly. Before the first length they are constant;
    after the last they grow as between the last two.
    """

    def __init__(self, table: Mapping[int, Mapping[int, float]]) -> None:
        """`table`: {cached length: {width: seconds}}; may be empty."""
        self._table = {length: dict(row) for length, row in sorted(table.items()) if row}
        self._lengths = list(self._table) or [0]
        self._rows: list[Float64Array] = []
        """For each length, float64[1 + widest]: seconds by width. Index 0 repeats width 1, since no pass is empty."""
        self.widest = 0
        """Widest pass that can be asked for."""
        self.widen(max((max(row) for row in self._table.values()), default=1))

    def __bool__(self) -> bool:
        return bool(self._table)

    def widen(self, widest: int) -> None:
        """Extends the table to passes of `widest` rows."""
        self.widest = widest
        self._rows = [np.zeros(widest + 1) for _ in self._lengths]
        known = sorted({width for row in self._table.values() for width in row})
        for width in range(1, widest + 1) if known else ():
            source = next((one for one in known if one >= width), known[-1])
            points = [(length, row[source]) for length, row in self._table.items() if source in row]
            at, seconds = zip(*points, strict=True)
            for row, found in zip(self._rows, np.interp(self._lengths, at, seconds), strict=True):
                row[width] = max(1.0, width / source) * found
        for row in self._rows:
            row[0] = row[1]

    def row(self, length: int) -> Float64Array:
        """float64[1 + widest], seconds by width with `length` tokens cached."""
        low, share = self._place(length)
        return self._rows[low] + share * (self._rows[low + 1] - self._rows[low]) if share else self._rows[low]

    def seconds(self, width: int, length: int) -> float:
        """Seconds of one pass."""
        low, share = self._place(length)
        one = float(self._rows[low][width])
        return one + share * (float(self._rows[low + 1][width]) - one) if share else one

    def _place(self, length: int) -> tuple[int, float]:
        """Index of the table's length before this one, and the share of the way to the next; above 1 after the last."""
        lengths = self._lengths
        low = min(bisect_right(lengths, length), len(lengths) - 1) - 1
        if low < 0:
            return 0, 0.0
        return low, (length - lengths[low]) / (lengths[low + 1] - lengths[low])
