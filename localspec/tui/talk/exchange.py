"""Chats to files and back: what `/export` and `/import` do, off the screen's own thread."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.chat.archive.message import Chat
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.tui.shell.app import ChatApp

Kind = Literal["markdown", "json", "html"]
KINDS: dict[str, Kind] = {".md": "markdown", ".json": "json", ".html": "html"}


def target(title: str, file: str) -> tuple[Path, Kind]:
    """Where an export goes, and as what: the file that was named, or one of the chat's title in this folder.

    Raises:
        UsageError: the name's ending is none of `KINDS`.
    """
    path = Path(file).expanduser() if file else Path(re.sub(r"[^\w-]+", "-", title.lower()).strip("-")[:60] + ".md")
    if path.suffix not in KINDS:
        raise UsageError(f"{path.name} ends in {path.suffix or 'nothing'}; exports end in {', '.join(KINDS)}.")
    if not path.stem:
        path = path.with_name("chat.md")
    return path, KINDS[path.suffix]


def export(app: ChatApp, chat: Chat, file: str) -> None:
    """Writes a chat to a file that does not exist yet; says where, or why not."""
    path, kind = target(chat.title or "chat", file)
    app.run_worker(_export(app, chat, path, kind), group="exchange")


async def _export(app: ChatApp, chat: Chat, path: Path, kind: Kind) -> None:
    try:
        await asyncio.to_thread(_write, app, chat, path, kind)
    except FileExistsError:
        app.say(f"{path} exists already; name another file: /export FILE.", problem=True)
    except OSError as error:
        app.say(f"{path} cannot be written: {error.strerror}.", problem=True)
    else:
        app.say(f"Written to {path}.")


def _write(app: ChatApp, chat: Chat, path: Path, kind: Kind) -> None:
    text = app.archive.export([chat.id], kind)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def import_(app: ChatApp, file: str) -> None:
    """Takes in the chats of a file, and says how many.

    Raises:
        UsageError: no file is named.
    """
    if not file:
        raise UsageError("Name the file to take in.", "/import FILE: own JSON, or ChatGPT's conversations.json or zip.")
    app.run_worker(_import(app, Path(file).expanduser()), group="exchange")


async def _import(app: ChatApp, path: Path) -> None:
    try:
        report = await asyncio.to_thread(app.archive.import_file, path)
    except LocalspecError as error:
        app.say(str(error), problem=True)
    else:
        app.say(report.sentence())
