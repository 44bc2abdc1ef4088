"""A table of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; every cell but the first is a number."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> Iterator[str]:
        """Title, columns and rows, aligned with spaces."""
        yield self.title
        cells = (self.columns, *self.rows)
        widths = [max(len(row[index]) for row in cells) for index in range(len(self.columns))]
        for row in cells:
            yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
