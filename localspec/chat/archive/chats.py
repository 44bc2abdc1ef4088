"""Rows of chats, presets and prompts: made, listed, changed, deleted. Functions over a connection, in a transaction."""

from __future__ import annotations

import json
import re
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from localspec.chat.archive.message import Chat, Deletion, Preset
from localspec.chat.plain_text import plain_text
from localspec.errors import UsageError

UNDO_SECONDS = 7 * 86400.0
"""How long something deleted can be brought back."""
_EMPTY_SECONDS = 86400.0
"""How long a chat without messages, title or unsent input is kept."""
_COLUMNS = """chat.*, (SELECT count(*) FROM message WHERE chat = chat.id AND deletion IS NULL) AS messages,
(SELECT group_concat(tag, char(31)) FROM (SELECT tag FROM tag WHERE chat = chat.id ORDER BY tag)) AS tags"""
_LISTED = """chat.deletion IS NULL AND (pinned OR unsent <> '' OR EXISTS (
SELECT 1 FROM message WHERE chat = chat.id AND deletion IS NULL))"""


def clean(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates become U+FFFD, pairs one character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def one_line(text: str) -> str:
    """A title, or another name: on one line, and safe to show."""
    return " ".join(plain_text(clean(text)).split())


def json_text(data: Mapping[str, Any]) -> str:
    """Plain data as it is kept.

    Raises:
        UsageError: something in it is no plain data.
    """
    try:
        return json.dumps(dict(data), separators=(",", ":"), allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"These settings cannot be kept: {error}.") from None


def kept(value: Any) -> Any:
    """A value as SQLite takes it: texts that can be held, plain data as JSON. Raises as `json_text`."""
    if isinstance(value, Mapping):
        return json_text(value)
    return clean(value) if isinstance(value, str) else value


def fresh_key() -> str:
    """A name for a chat or a message that nothing else has."""
    return uuid.uuid4().hex


def _chat(row: sqlite3.Row) -> Chat:
    same = {field.name: row[field.name] for field in fields(Chat)}
    tags = tuple(row["tags"].split("\x1f")) if row["tags"] else ()
    return Chat(**same | {"params": json.loads(row["params"]), "pinned": bool(row["pinned"]), "tags": tags})


def find(connection: sqlite3.Connection, chat_id: int) -> Chat:
    """A chat that is not deleted.

    Raises:
        UsageError: there is none of that id.
    """
    row = None
    if -(2**63) <= chat_id < 2**63:
        query = f"SELECT {_COLUMNS} FROM chat WHERE id = ? AND deletion IS NULL"
        row = connection.execute(query, (chat_id,)).fetchone()
    if row is None:
        raise UsageError(f"There is no chat {chat_id}.", "`localspec chats list` shows all.")
    return _chat(row)


def of_key(connection: sqlite3.Connection, key: str) -> Chat | None:
    """The chat of this key, if it is not deleted."""
    query = f"SELECT {_COLUMNS} FROM chat WHERE key = ? AND deletion IS NULL"
    row = connection.execute(query, (clean(key),)).fetchone()
    return None if row is None else _chat(row)


def listed(connection: sqlite3.Connection, tag: str | None, limit: int | None) -> list[Chat]:
    """Chats in the order of the list: pinned first, then those used last."""
    tagged = "" if tag is None else "AND EXISTS (SELECT 1 FROM tag WHERE chat = chat.id AND tag = :tag)"
    query = (
        f"SELECT {_COLUMNS} FROM chat WHERE {_LISTED} {tagged} ORDER BY pinned DESC, used DESC, id DESC LIMIT :limit"
    )
    rows = connection.execute(query, {"tag": tag, "limit": -1 if limit is None else limit})
    return [_chat(row) for row in rows]


def last(connection: sqlite3.Connection) -> Chat | None:
    """The chat used last."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM chat WHERE {_LISTED} ORDER BY used DESC, id DESC LIMIT 1"
    ).fetchone()
    return None if row is None else _chat(row)


def create(
    connection: sqlite3.Connection, title: str, system: str, model: str, params: Mapping[str, Any], key: str = ""
) -> int:
    """A chat without messages; its id."""
    now = time.time()
    cursor = connection.execute(
        "INSERT INTO chat (key, title, system, model, params, created, used) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key or fresh_key(), one_line(title), clean(system), clean(model), json_text(params), now, now),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def change(connection: sqlite3.Connection, chat_id: int, **columns: Any) -> None:
    """Sets columns of a chat."""
    find(connection, chat_id)
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    values = {name: kept(value) for name, value in columns.items()}
    connection.execute(f"UPDATE chat SET {assignments} WHERE id = :id", values | {"id": chat_id})


def set_tags(connection: sqlite3.Connection, chat_id: int, tags: Iterable[str]) -> None:
    """Replaces a chat's tags; blanks around them and empty ones go."""
    find(connection, chat_id)
    names = {one_line(tag) for tag in tags} - {""}
    connection.execute("DELETE FROM tag WHERE chat = ?", (chat_id,))
    connection.executemany("INSERT INTO tag (chat, tag) VALUES (?, ?)", [(chat_id, name) for name in sorted(names)])


def tags(connection: sqlite3.Connection) -> list[str]:
    """Tags of chats that are not deleted."""
    query = "SELECT DISTINCT tag FROM tag JOIN chat ON chat.id = tag.chat WHERE deletion IS NULL ORDER BY tag"
    return [row[0] for row in connection.execute(query)]


def touch(connection: sqlite3.Connection, chat_id: int) -> None:
    """The chat was used now."""
    connection.execute("UPDATE chat SET used = ? WHERE id = ?", (time.time(), chat_id))


_BELOW = """WITH RECURSIVE below(id) AS (SELECT id FROM message WHERE id = :message
UNION SELECT message.id FROM message JOIN below ON message.parent = below.id)"""


def delete(connection: sqlite3.Connection, chat_id: int, message_id: int | None) -> Deletion:
    """Hides a chat, or a message with everything below it."""
    title = find(connection, chat_id).title
    at = time.time()
    cursor = connection.execute("INSERT INTO deletion (chat, message, at) VALUES (?, ?, ?)", (chat_id, message_id, at))
    assert cursor.lastrowid is not None
    values = {"deletion": cursor.lastrowid, "chat": chat_id, "message": message_id}
    if message_id is None:
        connection.execute("UPDATE chat SET deletion = :deletion WHERE id = :chat", values)
    else:
        connection.execute(
            f"{_BELOW} UPDATE message SET deletion = :deletion WHERE id IN (SELECT id FROM below) AND deletion IS NULL",
            values,
        )
    return Deletion(cursor.lastrowid, chat_id, message_id, at, title)


def deletions(connection: sqlite3.Connection) -> list[Deletion]:
    """What can be brought back, newest first."""
    query = """SELECT deletion.id, chat, message, at, title FROM deletion JOIN chat ON chat.id = deletion.chat
        ORDER BY deletion.id DESC"""
    return [Deletion(*row) for row in connection.execute(query)]


def _deletion(connection: sqlite3.Connection, deletion_id: int) -> Deletion:
    for deletion in deletions(connection):
        if deletion.id == deletion_id:
            return deletion
    raise UsageError(f"There is no deletion {deletion_id} to be found.", "It was undone, or is erased for good.")


def undo(connection: sqlite3.Connection, deletion_id: int) -> Deletion:
    """Brings back what a deletion hid. What lies below something that is still deleted comes back with that."""
    deletion = _deletion(connection, deletion_id)
    values = {"deletion": deletion_id, "message": deletion.message_id}
    connection.execute("UPDATE chat SET deletion = NULL WHERE deletion = :deletion", values)
    if deletion.message_id is not None:
        row = connection.execute(
            "SELECT deletion FROM message WHERE id = (SELECT parent FROM message WHERE id = :message)", values
        ).fetchone()
        values["above"] = None if row is None else row[0]
        connection.execute("UPDATE message SET deletion = :above WHERE deletion = :deletion", values)
    connection.execute("DELETE FROM deletion WHERE id = :deletion", values)
    return deletion


def erase(connection: sqlite3.Connection, deletion_id: int) -> None:
    """Removes for good what a deletion hid."""
    deletion = _deletion(connection, deletion_id)
    values = {"chat": deletion.chat_id, "message": deletion.message_id}
    if deletion.message_id is None:
        remove(connection, deletion.chat_id)
        return
    connection.execute(f"{_BELOW} DELETE FROM message WHERE id IN (SELECT id FROM below)", values)
    connection.execute(
        """DELETE FROM deletion WHERE chat = :chat AND message IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM message WHERE id = deletion.message)""",
        values,
    )


def remove(connection: sqlite3.Connection, chat_id: int) -> None:
    """Removes a chat for good, with all that belongs to it."""
    connection.execute("DELETE FROM message WHERE chat = ?", (chat_id,))
    connection.execute("DELETE FROM deletion WHERE chat = ?", (chat_id,))
    connection.execute("DELETE FROM chat WHERE id = ?", (chat_id,))


def sweep(connection: sqlite3.Connection) -> None:
    """Erases what was deleted long ago, and chats that never were begun."""
    old = time.time() - UNDO_SECONDS
    for (deletion,) in connection.execute("SELECT id FROM deletion WHERE at < ? ORDER BY id", (old,)).fetchall():
        if connection.execute("SELECT 1 FROM deletion WHERE id = ?", (deletion,)).fetchone():
            erase(connection, deletion)
    query = f"""SELECT id FROM chat WHERE deletion IS NULL AND used < ? AND NOT ({_LISTED})
        AND NOT EXISTS (SELECT 1 FROM message WHERE chat = chat.id)"""
    for (chat,) in connection.execute(query, (time.time() - _EMPTY_SECONDS,)).fetchall():
        remove(connection, chat)


# Rows beside the chats: presets and the history of prompts. Functions over a connection, inside a transaction.
#
# Presets are kept in the database, so that they share its backup, its mode and its safety when two programs write.

_MOST_PROMPTS = 5000
_LONGEST_NAME = 60


def list_presets(connection: sqlite3.Connection) -> list[Preset]:
    """All presets by name."""
    rows = connection.execute("SELECT name, system, params FROM preset ORDER BY name COLLATE NOCASE, name")
    return [Preset(row[0], row[1], json.loads(row[2])) for row in rows]


def save_preset(connection: sqlite3.Connection, preset: Preset) -> None:
    """Adds a preset, or replaces the one of that name.

    Raises:
        UsageError: the name is empty or too long.
    """
    name = " ".join(clean(preset.name).split())
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise UsageError(f"A preset is named {name[:80]!r}; a name has 1 to {_LONGEST_NAME} characters.")
    connection.execute(
        "INSERT OR REPLACE INTO preset (name, system, params) VALUES (?, ?, ?)",
        (name, clean(preset.system), json_text(preset.params)),
    )


def delete_preset(connection: sqlite3.Connection, name: str) -> None:
    """Removes a preset.

    Raises:
        UsageError: there is none of that name.
    """
    if not connection.execute("DELETE FROM preset WHERE name = ?", (clean(name),)).rowcount:
        raise UsageError(f"There is no preset {name!r}.")


def add_prompt(connection: sqlite3.Connection, text: str) -> None:
    """Puts a text at the end of the prompt history; an equal older one goes, and the oldest of too many."""
    text = clean(text)
    if not text.strip():
        return
    connection.execute("DELETE FROM prompt WHERE text = ?", (text,))
    connection.execute("INSERT INTO prompt (text) VALUES (?)", (text,))
    connection.execute("DELETE FROM prompt WHERE id <= (SELECT max(id) FROM prompt) - ?", (_MOST_PROMPTS,))


def prompts(connection: sqlite3.Connection, limit: int, containing: str) -> list[str]:
    """The prompt history, newest first; `containing`: only texts with that in it, letter case aside."""
    query = "SELECT text FROM prompt WHERE instr(lower(text), lower(?)) > 0 ORDER BY id DESC LIMIT ?"
    return [row[0] for row in connection.execute(query, (clean(containing), limit))]


# A chat's title, made from its first message.

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
