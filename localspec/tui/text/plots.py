"""Small plots of text: bars, columns, a clock's digits. Plain strings in eighths of a cell, readable without colour."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """A horizontal bar of `width` cells, filled to a share of 0 to 1; blanks after it."""
    eighths = round(8 * width * min(1.0, max(0.0, share)))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def columns(values: Sequence[float], highest: float | None = None) -> str:
    """One cell a value; `highest` fills a cell, None = the largest value. 0 is a line at the bottom."""
    top = max(values, default=0.0) if highest is None else highest
    shares = (min(1.0, max(0.0, value / top)) if top > 0 else 0.0 for value in values)
    return "".join(_LEVELS[round(share * (len(_LEVELS) - 1))] for share in shares)


def graph(values: Sequence[float], width: int, height: int) -> list[str]:
    """Columns over several rows, top row first; with more values than cells each cell is a mean of neighbours."""
    cells = _means(values, width)
    top = max(cells, default=0.0)
    rows = []
    for row in reversed(range(height)):
        line = ""
        for value in cells:
            eighths = round(8 * height * value / top) if top > 0 else 0
            inside = max(0, min(8, eighths - 8 * row))
            line += " " if not inside else _LEVELS[inside - 1]
        rows.append(line)
    return rows


def _means(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [count * cell // width for cell in range(width + 1)]
    return [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]


def duration(seconds: float) -> str:
    """Seconds for people: 3.2 ms, 840 ms, 3.2 s, 2 min 05 s, 1 h 02 min."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 0 < seconds < 0.00995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def amount(count: float) -> str:
    """Bytes for people: 4.98 GB, 639 MB, 6.2 MB, 12 kB."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} GB"
    if count >= 1e6:
        return f"{count / 1e6:.{0 if count >= 1e8 else 1}f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count:.0f} bytes"
