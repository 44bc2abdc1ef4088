"""A benchmark as one HTML page that needs nothing else: tables, pictures, light and dark."""

from __future__ import annotations

import json
from html import escape

from localspec.bench.results import plots
from localspec.bench.results.results import Results, as_dict, heading, notes, tables
from localspec.bench.results.table import Table

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
    drafted = plots.depths(cells)
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
        plots.speedups(cells),
        "<h2>Where the time goes</h2>",
        "<p>" + "".join(_key(name, name) for name in ("draft", "verify", "host")) + "</p>",
        plots.shares(cells),
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
