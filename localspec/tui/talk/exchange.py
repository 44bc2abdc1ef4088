"""Chats to files and back: what `/export` and `/import` do, off the screen's own thread."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Chat
from localspec.errors import UsageError
from localspec.paths import typed

Kind = Literal["markdown", "json", "html"]
KINDS: dict[str, Kind] = {".md": "markdown", ".json": "json", ".html": "html"}


def target(title: str, file: str) -> tuple[Path, Kind]:
    """Where an export goes, and as what: the file that was named, or one of the chat's title in this folder.

    Raises:
        UsageError: the name's ending is none of `KINDS`.
    """
    path = typed(file) if file else Path(re.sub(r"[^\w-]+", "-", title.lower()).strip("-")[:60] + ".md")
    if path.suffix not in KINDS:
        raise UsageError(f"{path.name} ends in {path.suffix or 'nothing'}; exports end in {', '.join(KINDS)}.")
    if not path.stem:
        path = path.with_name("chat.md")
    return path, KINDS[path.suffix]


def export(archive: Archive, chat: Chat, file: str) -> Coroutine[Any, Any, str]:
    """Writes a chat to a file that does not exist yet; the result says where."""
    path, kind = target(chat.title or "chat", file)
    return asyncio.to_thread(_write, archive, chat, path, kind)


def _write(archive: Archive, chat: Chat, path: Path, kind: Kind) -> str:
    text = archive.export([chat.id], kind)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already; name another file: /export FILE.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    return f"Written to {path}."


def import_(archive: Archive, file: str) -> Coroutine[Any, Any, str]:
    """Takes in the chats of a file; the result says how many.

    Raises:
        UsageError: no file is named.
    """
    if not file:
        raise UsageError("Name the file to take in.", "/import FILE: own JSON, or ChatGPT's conversations.json or zip.")
    return asyncio.to_thread(lambda: archive.import_file(typed(file)).sentence())
