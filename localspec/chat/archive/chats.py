"""The archive's rows of chats, deletions, presets and prompts; and a chat's title, made from its first message."""

from __future__ import annotations

import json
import re
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from localspec.chat.archive.file import ArchiveFile, clean, reads, storable, writes
from localspec.chat.archive.message import Chat, Deletion, Preset
from localspec.chat.plain_text import plain_text
from localspec.errors import UsageError

UNDO_SECONDS = 7 * 86400.0
"""How long something deleted can be brought back."""
_EMPTY_SECONDS = 86400.0
"""How long a chat without messages, title or unsent input is kept."""
_MOST_PROMPTS = 5000
_LONGEST_NAME = 60
_COLUMNS = """chat.*, (SELECT count(*) FROM message WHERE chat = chat.id AND deletion IS NULL) AS messages,
(SELECT group_concat(tag, char(31)) FROM (SELECT tag FROM tag WHERE chat = chat.id ORDER BY tag)) AS tags"""
_LISTED = """(pinned OR unsent <> '' OR EXISTS (
SELECT 1 FROM message WHERE chat = chat.id AND deletion IS NULL))"""
BELOW = """WITH RECURSIVE below(id) AS (SELECT id FROM message WHERE id = :message
UNION SELECT message.id FROM message JOIN below ON message.parent = below.id)"""


def one_line(text: str) -> str:
    """A title, or another name: on one line, and safe to show."""
    return " ".join(plain_text(clean(text)).split())


def fresh_key() -> str:
    """A name for a chat or a message that nothing else has."""
    return uuid.uuid4().hex


def _chat(row: sqlite3.Row) -> Chat:
    same = {field.name: row[field.name] for field in fields(Chat)}
    tags = tuple(row["tags"].split("\x1f")) if row["tags"] else ()
    return Chat(**same | {"params": json.loads(row["params"]), "pinned": bool(row["pinned"]), "tags": tags})


class ArchivedChats(ArchiveFile):
    """Chats without their messages, and what lies beside them."""

    @writes
    def new_chat(
        self, *, title: str = "", system: str = "", model: str = "", params: Mapping[str, Any] | None = None
    ) -> Chat:
        """A chat without messages; it is listed once it has some."""
        now = time.time()
        row = {"key": fresh_key(), "title": one_line(title), "system": system, "model": model, "params": params or {}}
        return self.chat(self._insert("chat", row | {"created": now, "used": now}))

    def _chats(self, rest: str, values: Mapping[str, Any] | None = None) -> list[Chat]:
        """Chats that are not deleted."""
        rows = self._sql(f"SELECT {_COLUMNS} FROM chat WHERE chat.deletion IS NULL AND {rest}", values or {})
        return [_chat(row) for row in rows]

    @reads
    def chat(self, chat_id: int) -> Chat:
        """A chat by id. Raises UsageError if there is none, as all methods that take one."""
        found = self._chats("id = :id", {"id": chat_id}) if -(2**63) <= chat_id < 2**63 else []
        if not found:
            raise UsageError(f"There is no chat {chat_id}.", "`localspec chats list` shows all.")
        return found[0]

    @reads
    def chat_of_key(self, key: str) -> Chat | None:
        """A chat by its key; None = there is none, or it is deleted."""
        return next(iter(self._chats("key = :key", {"key": clean(key)})), None)

    @reads
    def chats(self, *, tag: str | None = None, limit: int | None = None) -> list[Chat]:
        """Pinned chats first, then those used last."""
        tagged = "" if tag is None else "AND EXISTS (SELECT 1 FROM tag WHERE chat = chat.id AND tag = :tag)"
        order = "ORDER BY pinned DESC, used DESC, id DESC LIMIT :limit"
        return self._chats(f"{_LISTED} {tagged} {order}", {"tag": tag, "limit": -1 if limit is None else limit})

    @reads
    def last_chat(self) -> Chat | None:
        """The one used last."""
        return next(iter(self._chats(f"{_LISTED} ORDER BY used DESC, id DESC LIMIT 1")), None)

    @reads
    def tags(self) -> list[str]:
        """All tags in use."""
        query = "SELECT DISTINCT tag FROM tag JOIN chat ON chat.id = tag.chat WHERE deletion IS NULL ORDER BY tag"
        return [row[0] for row in self._sql(query)]

    def rename(self, chat_id: int, title: str) -> None:
        """Gives a chat another title."""
        self._set(chat_id, title=one_line(title))

    def pin(self, chat_id: int, pinned: bool = True) -> None:
        """Puts a chat at the head of the list, or back."""
        self._set(chat_id, pinned=pinned)

    def set_system(self, chat_id: int, text: str) -> None:
        """Sets a chat's system prompt."""
        self._set(chat_id, system=text)

    def set_params(self, chat_id: int, params: Mapping[str, Any]) -> None:
        """Replaces a chat's parameters."""
        self._set(chat_id, params=params)

    def set_model(self, chat_id: int, name: str) -> None:
        """Says which pair or model a chat is held with."""
        self._set(chat_id, model=name)

    def set_unsent(self, chat_id: int, text: str) -> None:
        """Keeps the text in the input."""
        self._set(chat_id, unsent=text)

    def set_window(self, chat_id: int, first_message_id: int | None, summary: str = "") -> None:
        """From now on the model sees a chat from this message on, and the summary instead of what came before."""
        self._set(chat_id, window_first=first_message_id, window_summary=summary)

    @writes
    def _set(self, /, chat_id: int, **columns: Any) -> None:
        self.chat(chat_id)
        assignments = ", ".join(f"{name} = :{name}" for name in columns)
        values = {name: storable(value) for name, value in columns.items()}
        self._sql(f"UPDATE chat SET {assignments} WHERE id = :id", values | {"id": chat_id})

    @writes
    def set_tags(self, chat_id: int, tags: Iterable[str]) -> None:
        """Replaces a chat's tags; blanks around them and empty ones go."""
        self.chat(chat_id)
        self._sql("DELETE FROM tag WHERE chat = ?", (chat_id,))
        for name in sorted({one_line(tag) for tag in tags} - {""}):
            self._sql("INSERT INTO tag (chat, tag) VALUES (?, ?)", (chat_id, name))

    @writes
    def delete_chat(self, chat_id: int) -> Deletion:
        """Hides a chat; it can be brought back for a week."""
        deletion = self._deleted(chat_id, None)
        self._sql("UPDATE chat SET deletion = ? WHERE id = ?", (deletion.id, chat_id))
        return deletion

    def _deleted(self, chat_id: int, message_id: int | None) -> Deletion:
        title, at = self.chat(chat_id).title, time.time()
        number = self._insert("deletion", {"chat": chat_id, "message": message_id, "at": at})
        return Deletion(number, chat_id, message_id, at, title)

    @reads
    def deletions(self) -> list[Deletion]:
        """The deletions that can be undone, newest first."""
        query = """SELECT deletion.id, chat, message, at, title FROM deletion JOIN chat ON chat.id = deletion.chat
            ORDER BY deletion.id DESC"""
        return [Deletion(*row) for row in self._sql(query)]

    def _deletion(self, deletion_id: int) -> Deletion:
        for deletion in self.deletions():
            if deletion.id == deletion_id:
                return deletion
        raise UsageError(f"There is no deletion {deletion_id} to be found.", "It was undone, or is erased for good.")

    @writes
    def erase(self, deletion_id: int) -> None:
        """Removes what was deleted for good."""
        deletion = self._deletion(deletion_id)
        if deletion.message_id is None:
            self._remove(deletion.chat_id)
            return
        values = {"chat": deletion.chat_id, "message": deletion.message_id}
        self._sql(f"{BELOW} DELETE FROM message WHERE id IN (SELECT id FROM below)", values)
        self._sql(
            """DELETE FROM deletion WHERE chat = :chat AND message IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM message WHERE id = deletion.message)""",
            values,
        )

    def _remove(self, chat_id: int) -> None:
        """Removes a chat for good, with all that belongs to it."""
        for statement in ("message WHERE chat", "deletion WHERE chat", "chat WHERE id"):
            self._sql(f"DELETE FROM {statement} = ?", (chat_id,))

    def _sweep(self) -> None:
        """Erases what was deleted long ago, and chats that never were begun."""
        old = time.time() - UNDO_SECONDS
        for (deletion,) in self._sql("SELECT id FROM deletion WHERE at < ? ORDER BY id", (old,)).fetchall():
            if self._sql("SELECT 1 FROM deletion WHERE id = ?", (deletion,)).fetchone():
                self.erase(deletion)
        query = f"""SELECT id FROM chat WHERE deletion IS NULL AND used < ? AND NOT {_LISTED}
            AND NOT EXISTS (SELECT 1 FROM message WHERE chat = chat.id)"""
        for (chat,) in self._sql(query, (time.time() - _EMPTY_SECONDS,)).fetchall():
            self._remove(chat)

    # Presets are kept in the database, so that they share its backup, its mode and its safety when two programs write.

    @reads
    def presets(self) -> list[Preset]:
        """All presets by name."""
        rows = self._sql("SELECT name, system, params FROM preset ORDER BY name COLLATE NOCASE, name")
        return [Preset(row[0], row[1], json.loads(row[2])) for row in rows]

    @writes
    def save_preset(self, preset: Preset) -> None:
        """Adds a preset, or replaces the one of that name.

        Raises:
            UsageError: the name is empty or too long.
        """
        name = " ".join(clean(preset.name).split())
        if not 1 <= len(name) <= _LONGEST_NAME:
            raise UsageError(f"A preset is named {name[:80]!r}; a name has 1 to {_LONGEST_NAME} characters.")
        values = (name, clean(preset.system), storable(preset.params))
        self._sql("INSERT OR REPLACE INTO preset (name, system, params) VALUES (?, ?, ?)", values)

    @writes
    def delete_preset(self, name: str) -> None:
        """Removes a preset.

        Raises:
            UsageError: there is none of that name.
        """
        if not self._sql("DELETE FROM preset WHERE name = ?", (clean(name),)).rowcount:
            raise UsageError(f"There is no preset {name!r}.")

    @writes
    def add_prompt(self, text: str) -> None:
        """Puts a text at the end of the prompt history, as `append_user` and `edit` do; an equal older one goes, and
        the oldest of too many.
        """
        text = clean(text)
        if text.strip():
            self._sql("DELETE FROM prompt WHERE text = ?", (text,))
            self._sql("INSERT INTO prompt (text) VALUES (?)", (text,))
            self._sql("DELETE FROM prompt WHERE id <= (SELECT max(id) FROM prompt) - ?", (_MOST_PROMPTS,))

    @reads
    def prompts(self, limit: int = 200, containing: str = "") -> list[str]:
        """The prompt history, newest first; `containing`: only texts with that in it, letter case aside."""
        query = "SELECT text FROM prompt WHERE instr(lower(text), lower(?)) > 0 ORDER BY id DESC LIMIT ?"
        return [row[0] for row in self._sql(query, (clean(containing), limit))]


LONGEST_TITLE = 60
"""Characters of a made title."""
_MARKS = re.compile(r"^(?:[#>*+\-`~\s]|\d+[.)]\s)+|[*_`~\s]+$")
"""Markdown around a line: headings, quotes, bullets, fences, emphasis."""


def title_from(text: str) -> str:
    """The first line that says something, on one line, cut at a word; "" for a text without any."""
    for line in plain_text(text).splitlines():
        words = _MARKS.sub("", line).replace("**", "").replace("`", "").split()
        if any(character.isalnum() for word in words for character in word):
            return _cut(" ".join(words))
    rest = " ".join(plain_text(text).split())
    return _cut(rest)


def _cut(line: str) -> str:
    if len(line) <= LONGEST_TITLE:
        return line
    short = line[: LONGEST_TITLE - 1]
    at = short.rfind(" ")
    return (short[:at] if at > LONGEST_TITLE // 2 else short).rstrip(" ,;:.") + "…"
