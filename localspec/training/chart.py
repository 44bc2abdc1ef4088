"""A page that shows how training went: the loss, and what measuring found. One file, without a script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from localspec.checks.gain import SIDES

_WIDTH, _HEIGHT, _MARGIN = 640, 220, 44
_COLUMNS = ("minutes", "tokens a pass", "plain", "before", "with it", "texts equal")
_STYLE = """
:root { --text: #1c2024; --line: #d5d9dd; --own: #2f6fdb; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8ea; --line: #3a4046; --own: #7aa7ff; --back: #16191c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 46em;
  margin: 2em auto; padding: 0 1em; }
svg { width: 100%; } text { fill: var(--text); font-size: 12px; } .axis { stroke: var(--line); }
.line { fill: none; stroke: var(--own); stroke-width: 2; } table { border-collapse: collapse; }
td, th { padding: .2em .8em .2em 0; text-align: right; }
"""


def page(name: str, losses: Sequence[tuple[float, float]], measured: Sequence[dict[str, Any]]) -> str:
    """HTML.

    Args:
        name: of the draft model.
        losses: (seconds of training, loss).
        measured: see `course.State`.
    """
    rows = "".join(_row(one) for one in measured)
    head = "".join(f"<th>{word}</th>" for word in _COLUMNS)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(name)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(name)}</h1><h2>Loss</h2>{_chart(losses)}"
        f"<h2>Measured on held-out prompts, tokens a second</h2><table><tr>{head}</tr>{rows}</table></html>\n"
    )


def _row(one: dict[str, Any]) -> str:
    speeds = one["speeds"]
    cells: Iterable[str] = (
        f"{one['seconds'] / 60:.0f}",
        f"{one['tokens_a_pass']:.2f}",
        *(f"{speeds[side]:.0f}" for side in SIDES),
        f"{one['equal']} of {one['prompts']}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _chart(losses: Sequence[tuple[float, float]]) -> str:
    """The loss as a line over minutes."""
    points = [(seconds / 60.0, loss) for seconds, loss in losses if math.isfinite(loss)]
    if len(points) < 2:
        return "<p>Too few steps for a line.</p>"
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    last, span = points[-1][0], (high - low) or 1.0

    def at(minutes: float, loss: float) -> str:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * minutes / last
        return f"{x:.1f},{_MARGIN + (_HEIGHT - 2 * _MARGIN) * (high - loss) / span:.1f}"

    line, bottom = " ".join(at(*point) for point in points), _HEIGHT - _MARGIN
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="loss over minutes">'
        f'<path class="axis" d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none"/>'
        f'<polyline class="line" points="{line}"/>'
        f'<text x="4" y="{_MARGIN + 4}">{high:.2f}</text><text x="4" y="{bottom}">{low:.2f}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{bottom + 18}" text-anchor="end">{last:.0f} minutes</text></svg>'
    )
