"""Chats from elsewhere, put into the archive. What is there already is known by its key and left as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from localspec.chat.archive.chats import change, clean, create, remove, set_tags
from localspec.chat.archive.message import Attachment
from localspec.chat.archive.tree import write


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignMessage:
    """A message by keys instead of ids. Fields stand in the order of the export."""

    key: str
    parent: str | None = None
    chosen: bool = False
    """It is its parent's chosen child."""
    role: str
    content: str
    reasoning: str = ""
    state: str = "done"
    note: str = ""
    model: str = ""
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    attachments: Sequence[Attachment] = ()
    created: float
    updated: float
    passes: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignChat:
    """A chat that can be taken in. Fields stand in the order of the export."""

    key: str
    title: str = ""
    system: str = ""
    model: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    pinned: bool = False
    tags: Sequence[str] = ()
    unsent: str = ""
    window_first: str | None = None
    window_summary: str = ""
    created: float
    used: float
    messages: Sequence[ForeignMessage]
    """Parents before children."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did."""

    chats: int
    """New ones."""
    messages: int
    """New ones, in new and in known chats."""
    skipped: int
    """Chats of which everything was there already."""
    left_out: int = 0
    """Things that have no place in a chat, such as a tool's raw output."""

    def sentence(self) -> str:
        """For a person."""
        parts = [f"{_count(self.chats, 'chat')} and {_count(self.messages, 'message')} imported"]
        if self.skipped:
            parts.append(f"{_count(self.skipped, 'chat')} already there")
        if self.left_out:
            parts.append(f"{_count(self.left_out, 'message')} of tools, system or images left out")
        return "; ".join(parts) + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def take_in(connection: sqlite3.Connection, chats: Sequence[ForeignChat], left_out: int = 0) -> ImportReport:
    """Adds chats, and to chats that are there the messages that are not. A deleted chat comes back as a new one."""
    new_chats = new_messages = skipped = 0
    for chat in chats:
        row = connection.execute("SELECT id, deletion FROM chat WHERE key = ?", (clean(chat.key),)).fetchone()
        if row is not None and row["deletion"] is not None:
            remove(connection, row["id"])
            row = None
        chat_id = _add_chat(connection, chat) if row is None else int(row["id"])
        added = _add_messages(connection, chat_id, chat, follow=row is None)
        if row is None:
            window = _id_of(connection, chat_id, chat.window_first)
            connection.execute("UPDATE chat SET window_first = ? WHERE id = ?", (window, chat_id))
        new_chats += row is None
        new_messages += added
        skipped += row is not None and not added
    return ImportReport(new_chats, new_messages, skipped, left_out)


def _add_chat(connection: sqlite3.Connection, chat: ForeignChat) -> int:
    chat_id = create(connection, chat.title, chat.system, chat.model, chat.params, clean(chat.key))
    names = ("pinned", "unsent", "window_summary", "created", "used")
    change(connection, chat_id, **{name: getattr(chat, name) for name in names})
    set_tags(connection, chat_id, chat.tags)
    return chat_id


def _id_of(connection: sqlite3.Connection, chat_id: int, key: str | None) -> int | None:
    row = connection.execute(
        "SELECT id FROM message WHERE chat = ? AND key = ?", (chat_id, None if key is None else clean(key))
    ).fetchone()
    return None if row is None else int(row[0])


def _add_messages(connection: sqlite3.Connection, chat_id: int, chat: ForeignChat, follow: bool) -> int:
    """Adds what is not known by key; returns how many. follow: the file's choice of branches is taken, too."""
    known = dict(connection.execute("SELECT key, id FROM message WHERE chat = ?", (chat_id,)).fetchall())
    added = 0
    for message in chat.messages:
        key = clean(message.key)
        if key in known:
            continue
        parent = None if message.parent is None else known[clean(message.parent)]
        known[key] = _add_message(connection, chat_id, parent, message)
        added += 1
        if follow and message.chosen:
            if parent is None:
                connection.execute("UPDATE chat SET chosen = ? WHERE id = ?", (known[key], chat_id))
            else:
                connection.execute("UPDATE message SET chosen = ? WHERE id = ?", (known[key], parent))
    return added


def _add_message(connection: sqlite3.Connection, chat_id: int, parent: int | None, message: ForeignMessage) -> int:
    apart = {"parent", "chosen", "attachments", "passes"}
    same = {field.name: getattr(message, field.name) for field in fields(message) if field.name not in apart}
    added = write(connection, same | {"chat": chat_id, "parent": parent}, message.attachments)
    if message.passes is not None:
        connection.execute("INSERT INTO passes (message, part, data) VALUES (?, 0, ?)", (added, message.passes))
    return added
