"""A benchmark as one HTML page that needs nothing else: tables, pictures, light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape

from localspec.bench.contest.run import BASELINE, PRODUCT
from localspec.bench.results.cells import Cell
from localspec.bench.results.results import Results, Table, as_dict, heading, notes, tables

_STYLE = """
:root { color-scheme: light dark; --back: #fbfbfa; --text: #1d2126; --soft: #667; --line: #d9dbde; --own: #2a6fb0;
  --mark: #b4521e; --limit: #7a4fa3; --draft: #d08a2e; --verify: #2a6fb0; --host: #8a929c; }
@media (prefers-color-scheme: dark) { :root { --back: #16191d; --text: #e4e6e9; --soft: #9aa2ac; --line: #343a42;
  --own: #5ea3e6; --mark: #f0955c; --limit: #b993e0; --draft: #e0a95a; --verify: #5ea3e6; --host: #77808b; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .25rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.label { border-left: 4px solid var(--mark); padding-left: .75rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--text); }
svg .name { text-anchor: end; } svg .tick { text-anchor: middle; fill: var(--soft); }
.grid { stroke: var(--line); fill: none; } .one { stroke: var(--text); stroke-dasharray: 3 3; fill: none; }
.own { fill: var(--own); } .ring { fill: var(--back); stroke: var(--soft); stroke-width: 1.5; }
.best { fill: var(--mark); stroke: var(--back); } .limit { stroke: var(--limit); stroke-width: 3; fill: none; }
.whisker { stroke: var(--text); stroke-width: 1.5; fill: none; }
.draft { fill: var(--draft); } .verify { fill: var(--verify); } .host { fill: var(--host); }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin: 0 .35em 0 1em; }
details { margin-top: 2rem; } pre { overflow-x: auto; font-size: .75rem; }
"""


def as_html(results: Results) -> str:
    """The page."""
    cells = results.cells
    drafted = depths(cells)
    body = [
        "<h1>localspec bench</h1>",
        f"<p>{escape(heading(results))}</p>",
        *(f'<p class="label">{escape(label)}</p>' for label in results.labels),
        "<h2>Speedup over plain decoding</h2>",
        "<p>"
        + _key("own", "localspec without flags, with its 95 % interval")
        + _key("mark", "best fixed draft length in hindsight")
        + _key("soft", "other contenders")
        + _key("limit", "clairvoyant limit")
        + "</p>",
        speedups(cells),
        "<h2>Where the time goes</h2>",
        "<p>" + "".join(_key(name, name) for name in ("draft", "verify", "host")) + "</p>",
        shares(cells),
        *(["<h2>How deep drafts were accepted</h2>", drafted] if drafted else []),
        *(_table(table) for table in tables(results)),
        "<h2>Notes</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in notes(results)) + "</ul>",
        "<details><summary>Everything as JSON</summary><pre>",
        escape(json.dumps(as_dict(results), indent=1)),
        "</pre></details>",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = "<title>localspec bench</title>"
    inner = "\n".join(body)
    head += f"{title}<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{inner}\n</body></html>\n'


def _key(colour: str, words: str) -> str:
    return f'<span class="key" style="background: var(--{colour})"></span>{escape(words)}'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'<h2>{escape(table.title)}</h2><div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


# Pictures of a benchmark as inline SVG. Colours come from the page's style sheet, so that they suit light and dark.

_LABELS, _WIDTH, _ROW, _TOP = 150.0, 760.0, 30.0, 24.0
"""Pixels: the column of names, the whole picture, a row, and the axis above the rows."""


def speedups(cells: Sequence[Cell]) -> str:
    """A row per cell: localspec's bar with its interval, the others as rings, best fixed and limit as marks."""
    found = [(cell, cell.speedup(PRODUCT)) for cell in cells]
    highest = [1.0]
    for cell, speedup in found:
        highest += [speedup.high] if speedup else []
        highest += [other.value for name in cell.contenders if (other := cell.speedup(name)) is not None]
        highest += [cell.limit.speedup] if cell.limit else []
    scale = _Scale(max(highest))
    parts = [*scale.axis(len(cells), "x")]
    for row, (cell, speedup) in enumerate(found):
        middle = _TOP + (row + 0.5) * _ROW
        parts.append(_name(cell, middle))
        if speedup is not None:
            parts.append(_bar("own", _LABELS, middle - 7, scale.length(speedup.value), 14, f"{speedup.value:.3f}x"))
            if speedup.over:
                words = f"95 %: {speedup.low:.3f} to {speedup.high:.3f}"
                parts.append(_whisker(scale.place(speedup.low), scale.place(speedup.high), middle, words))
        for name in cell.contenders:
            other = cell.speedup(name)
            if name not in (BASELINE, PRODUCT) and other is not None:
                kind = "best" if name == cell.best_fixed else "ring"
                words = f"{name}: {other.value:.3f}x"
                parts.append(
                    _titled(
                        f'<circle class="{kind}" cx="{scale.place(other.value):.1f}" cy="{middle:.1f}" r="4"', words
                    )
                )
        if cell.limit is not None:
            at = scale.place(cell.limit.speedup)
            words = f"clairvoyant limit: {cell.limit.speedup:.2f}x"
            parts.append(_titled(f'<path class="limit" d="M{at:.1f} {middle - 10:.1f}v20"', words))
    one = scale.place(1.0)
    parts.append(f'<path class="one" d="M{one:.1f} {_TOP:.0f}v{len(cells) * _ROW:.0f}"/>')
    return _svg(parts, _TOP + len(cells) * _ROW + 6, "Speedup over plain decoding, by workload and temperature")


def shares(cells: Sequence[Cell]) -> str:
    """A row per cell: where localspec's decode time goes."""
    scale = _Scale(1.0)
    parts = [*scale.axis(len(cells), "%")]
    for row, cell in enumerate(cells):
        middle, start = _TOP + (row + 0.5) * _ROW, _LABELS
        parts.append(_name(cell, middle))
        for kind, share in zip(("draft", "verify", "host"), cell.product.time_shares, strict=True):
            length = scale.length(share)
            parts.append(_bar(kind, start, middle - 7, length, 14, f"{kind}: {share:.1%}"))
            start += length
    return _svg(parts, _TOP + len(cells) * _ROW + 6, "Share of decode time in draft, verify and host")


def depths(cells: Sequence[Cell]) -> str:
    """Small columns per cell: how deep localspec's drafts were accepted."""
    shown = [cell for cell in cells if cell.product.accepted_per_position]
    across, width, height = 4, _WIDTH / 4, 96.0
    parts = []
    for index, cell in enumerate(shown):
        left, top = index % across * width + 10, index // across * height
        positions = cell.product.accepted_per_position
        step = min(18.0, (width - 30) / len(positions))
        words = f"{cell.workload}, {cell.temperature:g}"
        parts.append(f'<text x="{left:.1f}" y="{top + 14:.1f}">{escape(words)}</text>')
        parts.append(f'<path class="grid" d="M{left:.1f} {top + 84:.1f}h{width - 24:.1f}"/>')
        for depth, share in enumerate(positions):
            words = f"accepted {depth + 1} deep or more: {share:.0%} of drafts"
            tall = 60.0 * share
            parts.append(_bar("own", left + depth * step, top + 84 - tall, step - 2, tall, words))
    rows = math.ceil(len(shown) / across)
    return _svg(parts, max(1, rows) * height, "Share of drafts accepted to each depth") if shown else ""


class _Scale:
    """Values from 0 to a maximum, left to right."""

    def __init__(self, most: float) -> None:
        self.step = next(step for step in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 1e9) if most / step <= 8)
        self.most = max(self.step, math.ceil(most / self.step - 1e-9) * self.step)

    def length(self, value: float) -> float:
        return value / self.most * (_WIDTH - _LABELS - 16)

    def place(self, value: float) -> float:
        return _LABELS + self.length(value)

    def axis(self, rows: int, unit: str) -> Iterator[str]:
        """Grid lines and their numbers."""
        for index in range(round(self.most / self.step) + 1):
            value = index * self.step
            at, words = self.place(value), f"{value:.0%}" if unit == "%" else f"{value:g}{unit}"
            yield f'<path class="grid" d="M{at:.1f} {_TOP:.0f}v{rows * _ROW:.0f}"/>'
            yield f'<text class="tick" x="{at:.1f}" y="{_TOP - 8:.0f}">{words}</text>'


def _name(cell: Cell, middle: float) -> str:
    words = escape(f"{cell.workload}, {cell.temperature:g}")
    return f'<text class="name" x="{_LABELS - 10:.0f}" y="{middle + 4:.1f}">{words}</text>'


def _bar(kind: str, left: float, top: float, width: float, height: float, words: str) -> str:
    place = f'x="{left:.1f}" y="{top:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
    return _titled(f'<rect class="{kind}" {place} rx="2"', words)


def _whisker(left: float, right: float, middle: float, words: str) -> str:
    path = f"M{left:.1f} {middle:.1f}H{right:.1f}M{left:.1f} {middle - 4:.1f}v8M{right:.1f} {middle - 4:.1f}v8"
    return _titled(f'<path class="whisker" d="{path}"', words)


def _titled(start: str, words: str) -> str:
    """An element with a tooltip; `start` is its tag without the closing bracket."""
    name = start[1 : start.index(" ")]
    return f"{start}><title>{escape(words)}</title></{name}>"


def _svg(parts: Sequence[str], height: float, words: str) -> str:
    size = f'viewBox="0 0 {_WIDTH:.0f} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'
