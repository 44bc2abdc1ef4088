"""Chats as one HTML file that loads nothing, runs nothing and needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markdown_it import MarkdownIt

from localspec.chat.archive.message import StoredMessage
from localspec.chat.files.export import SUMMARISED, ChatExport, heading, remark, summarised, title
from localspec.chat.plain_text import plain_text

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h2.who { font-size: .85rem; opacity: .7; margin: 2rem 0 .3rem; }
section.user { border-left: 3px solid #4a7fd4; padding-left: 1rem; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid #8886; border-radius: 6px; }
pre.said, .user pre.said { white-space: pre-wrap; border: 0; padding: 0; margin: 0; font: inherit; }
details { opacity: .8; margin: .4rem 0; } p.remark { font-style: italic; opacity: .7; }
table { border-collapse: collapse; } td, th { border: 1px solid #8886; padding: .2rem .5rem; }
nav li { margin: .2rem 0; }
"""
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<title>{title}</title><style>{style}</style></head><body>
"""


def to_html(exports: Sequence[ChatExport]) -> str:
    """The active paths. Answers are rendered Markdown, HTML in them is shown as text, images as links."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    name = title(exports[0].chat) if len(exports) == 1 else f"{len(exports)} chats"
    parts = [_HEAD.format(title=_safe(name), style=_STYLE)]
    if len(exports) > 1:
        links = (f'<li><a href="#c{at}">{_safe(title(item.chat))}</a></li>' for at, item in enumerate(exports))
        parts.append(f"<nav><ul>{''.join(links)}</ul></nav>")
    for at, export in enumerate(exports):
        parts.append(f'<article id="c{at}"><h1>{_safe(title(export.chat))}</h1>')
        if export.chat.system:
            parts.append(_folded("System prompt", export.chat.system))
        for place, message in enumerate(export.path):
            if place == summarised(export):
                parts.append(_folded(SUMMARISED, export.chat.window_summary))
            parts.append(_section(message, markdown))
        parts.append("</article>")
    return "\n".join(parts) + "\n</body></html>\n"


def _section(message: StoredMessage, markdown: MarkdownIt) -> str:
    parts = [f'<section class="{message.role}"><h2 class="who">{_safe(heading(message))}</h2>']
    if message.reasoning.strip():
        parts.append(_folded("Reasoning", message.reasoning.strip()))
    parts += [_folded(f"File {item.name}", item.content) for item in message.attachments]
    if message.role == "assistant":
        parts.append(markdown.render(plain_text(message.content)))
    else:
        parts.append(f'<pre class="said">{_safe(message.content)}</pre>')
    if remark(message):
        parts.append(f'<p class="remark">{_safe(remark(message))}</p>')
    return "\n".join([*parts, "</section>"])


def _folded(name: str, text: str) -> str:
    return f"<details><summary>{_safe(name)}</summary><pre>{_safe(text)}</pre></details>"


def _safe(text: str) -> str:
    return escape(plain_text(text))
