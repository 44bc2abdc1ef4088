"""Chats as text files: Markdown and HTML of the active path to read, JSON of everything to take in again."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape

from localspec.chat.archive.file import clean
from localspec.chat.archive.message import Chat, StoredMessage, WholeChat
from localspec.chat.plain_text import one_line, plain_text
from localspec.chat.prompt.prompt import in_fence, window_start, with_attachments
from localspec.chat.reply.tool import ToolCall, members
from localspec.chat.turn import CANCELLED, MadeCall

FORMAT, VERSION = "localspec chats", 1
"""What a JSON export says it is."""
NAMES = {"user": "You", "assistant": "Assistant", "system": "System", "tool": "Tool"}
"""How roles are called in front of people."""
_LONGEST_CALL = 52
"""Characters of the name and arguments of a call on its line: what came of it still stands on a line of 80."""
SUMMARISED = "From here on the model saw this summary instead of what stands above:"
"""What stands before a summary in exports to read."""


def to_markdown(exports: Sequence[WholeChat]) -> str:
    chapters = []
    for export in exports:
        parts = [f"# {title(export.chat)}"]
        if export.chat.system:
            parts.append(f"**System prompt**\n\n{_quoted(export.chat.system)}")
        path = export.path
        summarised = window_start(export.chat, path) if export.chat.window_summary else None
        for at, message in enumerate(path):
            if at == summarised:
                parts.append(f"*{SUMMARISED}*\n\n{_quoted(export.chat.window_summary)}")
            parts.append(f"## {heading(message)}")
            if thought := message.reasoning.strip():
                parts.append(f"<details><summary>Reasoning</summary>\n\n{_quoted(thought)}\n\n</details>")
            parts += [with_attachments("", message.attachments)]
            parts += [piece if isinstance(piece, str) else _unfolded(piece) for piece in message.pieces]
            if remark(message):
                parts.append(f"*{remark(message)}*")
        chapters.append("\n\n".join(part.rstrip() for part in parts if part))
    return "\n\n---\n\n".join(chapters) + "\n"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _unfolded(made: MadeCall) -> str:
    said = (
        f"Arguments:\n\n{in_fence(plain_text(made.call.arguments))}\n\nResult:\n\n{in_fence(plain_text(made.result))}"
    )
    return f"<details><summary>{_safe(call_line(made))}</summary>\n\n{said}\n\n</details>"


def signature(call: ToolCall, longest: int | None = None) -> str:
    """A call on one line, with its arguments: all of them, or the first characters."""
    given = members(call.arguments)
    named = call.arguments if given is None else ", ".join(f"{name}={value}" for name, value in given.items())
    words = one_line(named)  # nothing is left out: a user reads it before the call is made
    short = words if longest is None or len(words) <= longest else f"{words[: longest - 1]}…"
    return f"{one_line(call.name)}({short})"


def call_line(made: MadeCall) -> str:
    """A call on one line: its name, its arguments as far as they fit, how long it took, and how much came of it."""
    count = len(made.result.encode(errors="replace"))
    size = f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count} byte{'s' * (count != 1)}"
    if made.failed:
        size = "cancelled" if made.result == CANCELLED else "failed"
    return f"{signature(made.call, max(8, _LONGEST_CALL - len(made.call.name)))}, {made.seconds:.1f} s, {size}"


def title(chat: Chat) -> str:
    """Its title on one line; a chat without one has its number."""
    return " ".join(chat.title.split()) or f"Chat {chat.id}"


def heading(message: StoredMessage) -> str:
    who = NAMES[message.role] + (f" ({message.model})" if message.model else "")
    return f"{who}, {stamp(message.created)}"


def remark(message: StoredMessage) -> str:
    """What is to be said about an answer that did not end by itself; "" = nothing."""
    if message.state == "done" or message.role != "assistant":
        return ""
    return {"streaming": "still being written", "stopped": "stopped", "error": "failed"}[message.state] + (
        f": {message.note}" if message.note else ""
    )


def stamp(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "unknown time"


def to_json(exports: Sequence[WholeChat]) -> str:
    """Everything, all branches; `import_.read_own` is the inverse. Messages are named by key; an answer whose origin is
    known has `passes`, too.
    """
    chats = []
    for export in exports:
        keys: dict[int | None, str] = {message.id: message.key for message in export.messages}
        messages = []
        for message in export.messages:
            own = {"key": message.key, "parent": keys.get(message.parent_id), "chosen": message.id in export.chosen}
            messages.append(own | asdict(message))
            for name in ("id", "chat_id", "parent_id", "siblings"):
                del messages[-1][name]
            if message.id in export.passes:
                messages[-1]["passes"] = base64.b64encode(export.passes[message.id]).decode()
        chat = asdict(export.chat) | {"window_first": keys.get(export.chat.window_first), "messages": messages}
        del chat["id"]
        chats.append(chat)
    data = {"format": FORMAT, "version": VERSION, "chats": chats}
    return clean(json.dumps(data, ensure_ascii=False, indent=1)) + "\n"


# One HTML file that loads nothing, runs nothing and needs nothing else.

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


def to_html(exports: Sequence[WholeChat]) -> str:
    """The active paths. Answers are rendered Markdown, HTML in them is shown as text, images as links."""
    from markdown_it import MarkdownIt  # 20 ms

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
        path = export.path
        summarised = window_start(export.chat, path) if export.chat.window_summary else None
        for place, message in enumerate(path):
            if place == summarised:
                parts.append(_folded(SUMMARISED, export.chat.window_summary))
            parts.append(f'<section class="{message.role}"><h2 class="who">{_safe(heading(message))}</h2>')
            if thought := message.reasoning.strip():
                parts.append(_folded("Reasoning", thought))
            parts += [_folded(f"File {item.name}", item.content) for item in message.attachments]
            if message.role == "assistant":
                for piece in message.pieces:
                    if isinstance(piece, str):
                        parts.append(markdown.render(plain_text(piece)))
                    else:
                        parts.append(_folded(call_line(piece), piece.call.arguments, piece.result))
            else:
                parts.append(f'<pre class="said">{_safe(message.content)}</pre>')
            if remark(message):
                parts.append(f'<p class="remark">{_safe(remark(message))}</p>')
            parts.append("</section>")
        parts.append("</article>")
    return "\n".join(parts) + "\n</body></html>\n"


def _folded(name: str, *texts: str) -> str:
    inside = "".join(f"<pre>{_safe(text)}</pre>" for text in texts)
    return f"<details><summary>{_safe(name)}</summary>{inside}</details>"


def _safe(text: str) -> str:
    return escape(plain_text(text))


KINDS: dict[str, Callable[[Sequence[WholeChat]], str]] = {"markdown": to_markdown, "json": to_json, "html": to_html}
"""What chats can be written as, by name."""
