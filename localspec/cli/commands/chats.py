"""`localspec chats`: the chats on disk, listed, searched, shown, exported, imported and removed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat.plain_text import plain_text
from localspec.cli.parser import whole
from localspec.errors import LocalspecError, UsageError
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.chat.archive.archive import Archive

_SUFFIXES = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".json": "json"}


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    one = actions.add_parser("list", help="pinned chats, then those used last")
    one.add_argument("--tag", metavar="TAG", help="only chats with this tag")
    one.add_argument("--limit", type=whole(1), metavar="N", help="at most N")
    one.add_argument("--json", action="store_true", help="the list as JSON")
    one = actions.add_parser("search", help="find words in all chats")
    one.add_argument("words", nargs="+", metavar="WORD", help='all must occur; "in quotes": in that order')
    one.add_argument("--limit", type=whole(1), default=20, metavar="N", help="at most N; default: 20")
    one.add_argument("--json", action="store_true", help="the list as JSON")
    one = actions.add_parser("show", help="print a chat")
    one.add_argument("chat", nargs="?", default="last", metavar="CHAT", help="its number, or last (default)")
    one.add_argument("--json", action="store_true", help="all branches as JSON, as `export` writes them")
    one = actions.add_parser("export", help="write chats as Markdown, HTML or JSON")
    one.add_argument("chats", nargs="*", metavar="CHAT", help="numbers of chats, or last; default: all")
    one.add_argument("--format", choices=["markdown", "html", "json"], help="default: by the name of the file, or JSON")
    one.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    one = actions.add_parser("import", help="take in localspec's JSON or ChatGPT's export")
    one.add_argument("file", metavar="FILE", help="JSON file, zip, or folder with conversations.json")
    one = actions.add_parser("rm", help="remove chats; `undo` brings them back for a week")
    one.add_argument("chats", nargs="+", metavar="CHAT", help="numbers of chats, or last")
    one.add_argument("--now", action="store_true", help="erase them for good")
    one = actions.add_parser("undo", help="bring back what was removed")
    one.add_argument("deletion", nargs="?", type=int, metavar="NUMBER", help="as `rm` said; default: list them")


def run(options: argparse.Namespace) -> int:
    from localspec.chat.archive.archive import Archive

    action = _ACTIONS[options.action]
    with Archive.open() as archive:
        if archive.notice:
            changes = options.action == "import" or (options.action == "undo" and options.deletion is not None)
            if not archive.persistent and (changes or not archive.chats()):
                raise LocalspecError(archive.notice)
            print(f"localspec: {archive.notice}", file=sys.stderr)
        action(archive, options)
    return 0


def _number(archive: Archive, text: str) -> int:
    """A chat by what a user calls it."""
    if text == "last":
        last = archive.last_chat()
        if last is None:
            raise UsageError("There are no chats yet.", "`localspec chat` begins one.")
        return last.id
    try:
        return archive.chat(int(text)).id
    except ValueError:
        raise UsageError(
            f"A chat is called {text!r}; it must be a number of `localspec chats list`, or last."
        ) from None


def _list(archive: Archive, options: argparse.Namespace) -> None:
    chats = archive.chats(tag=options.tag, limit=options.limit)
    if options.json:
        print(json.dumps([asdict(chat) for chat in chats], ensure_ascii=False))
        return
    if not chats:
        print("There are no chats yet." if options.tag is None else f"No chat has the tag {options.tag!r}.")
    for chat in chats:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.used))
        tags = f"  [{', '.join(chat.tags)}]" if chat.tags else ""
        mark = "*" if chat.pinned else " "
        print(
            f"{chat.id:>5}{mark} {used}  {chat.messages:>4} messages  {_line(chat.title or '(no title)')}{_line(tags)}"
        )


def _line(text: str) -> str:
    return plain_text(text).replace("\n", " ")


def _search(archive: Archive, options: argparse.Namespace) -> None:
    words = (f'"{word}"' if " " in word and '"' not in word else word for word in options.words)
    hits = archive.search(" ".join(words), limit=options.limit)
    if options.json:
        print(json.dumps([asdict(hit) for hit in hits], ensure_ascii=False))
        return
    if not hits:
        print("Nothing was found.")
    for hit in hits:
        print(
            f"{hit.chat_id:>5}  {_line(hit.title)}" + (f"\n       {hit.role}: {_line(hit.snippet)}" if hit.role else "")
        )


def _show(archive: Archive, options: argparse.Namespace) -> None:
    _write(archive.export([_number(archive, options.chat)], "json" if options.json else "markdown"))


def _export(archive: Archive, options: argparse.Namespace) -> None:
    wanted = [_number(archive, text) for text in options.chats] or None
    kind = options.format or _SUFFIXES.get(Path(options.output or "").suffix.lower(), "json")
    text = archive.export(wanted, kind)
    if options.output is None:
        _write(text)
        return
    try:
        typed(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LocalspecError(f"Cannot write {options.output}: {error.strerror}.") from None


def _write(text: str) -> None:
    """A file's text to standard output; to a terminal only what cannot harm it."""
    sys.stdout.write(plain_text(text) if sys.stdout.isatty() else text)


def _import(archive: Archive, options: argparse.Namespace) -> None:
    print(archive.import_file(typed(options.file)).sentence())


def _rm(archive: Archive, options: argparse.Namespace) -> None:
    from localspec.runtime.kept.caches import CacheFolder  # imports numpy
    from localspec.runtime.kept.corpus import erase

    numbers = dict.fromkeys(_number(archive, text) for text in options.chats)  # all are there, or nothing is removed
    keys = {number: archive.chat(number).key for number in numbers}
    for key in keys.values():
        CacheFolder().remove(key)  # first: on a full disk it is the room for what is written after
    _check_lasting(archive)
    fault: LocalspecError | None = None
    for number, key in keys.items():
        deletion = archive.delete_chat(number)
        name = f'"{deletion.title}"' if deletion.title else "without a title"
        if options.now:
            archive.erase(deletion.id)
        _check_lasting(archive)
        if options.now:
            print(f"Erased chat {number} {name}.")
        else:
            print(f"Removed chat {number} {name}. `localspec chats undo {deletion.id}` brings it back.")
        try:
            erase(key)
        except LocalspecError as error:
            fault = error  # the next chats go all the same
    if fault is not None:
        raise fault


def _check_lasting(archive: Archive) -> None:
    if not archive.save_back():
        raise LocalspecError(archive.notice)


def _undo(archive: Archive, options: argparse.Namespace) -> None:
    if options.deletion is not None:
        archive.undo(options.deletion)
        print("It is back.")
        return
    deletions = archive.deletions()
    if not deletions:
        print("Nothing was removed lately.")
    for deletion in deletions:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(deletion.at))
        what = "chat" if deletion.message_id is None else "messages of chat"
        print(f"{deletion.id:>5}  {at}  {what} {deletion.chat_id}  {deletion.title}")


_ACTIONS: dict[str, Callable[..., None]] = {
    "list": _list,
    "search": _search,
    "show": _show,
    "export": _export,
    "import": _import,
    "rm": _rm,
    "undo": _undo,
}
