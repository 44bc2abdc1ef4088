"""The messages' rows: a tree for each chat, in which every message has a chosen child, and the path those make.

A message without a chosen child that is still there is followed by its newest one. Functions over a connection.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from localspec.chat.archive.chats import clean, create, find, fresh_key, kept, touch
from localspec.chat.archive.message import Attachment, StoredMessage
from localspec.errors import UsageError

LEAF = -1
"""Stands for the end of the active path where the id of a parent is wanted."""


_APART = {"chat_id", "parent_id", "attachments", "siblings"}
_SAME = [field.name for field in fields(StoredMessage) if field.name not in _APART]
"""Fields that are columns of the same name."""


def _message(row: sqlite3.Row, attachments: tuple[Attachment, ...], siblings: tuple[int, ...]) -> StoredMessage:
    same = {name: row[name] for name in _SAME} | {name: json.loads(row[name]) for name in ("sampling", "stats")}
    same["seed"] = None if row["seed"] is None else int(row["seed"])
    return StoredMessage(
        chat_id=row["chat"], parent_id=row["parent"], attachments=attachments, siblings=siblings, **same
    )


class Tree:
    """The messages of a chat as they lie in the database now, those deleted left out."""

    def __init__(self, connection: sqlite3.Connection, chat_id: int) -> None:
        self.chat = find(connection, chat_id)
        rows = connection.execute(
            "SELECT * FROM message WHERE chat = ? AND deletion IS NULL ORDER BY id", (chat_id,)
        ).fetchall()
        self._rows = {row["id"]: row for row in rows}
        self._children: dict[int | None, list[int]] = defaultdict(list)
        for row in rows:
            self._children[row["parent"]].append(row["id"])
        self._root = connection.execute("SELECT chosen FROM chat WHERE id = ?", (chat_id,)).fetchone()[0]
        self._attachments: dict[int, list[Attachment]] = defaultdict(list)
        query = """SELECT message, name, attachment.content FROM attachment JOIN message ON message.id = message
            WHERE chat = ? ORDER BY message, position"""
        for row in connection.execute(query, (chat_id,)):
            self._attachments[row[0]].append(Attachment(row[1], row[2]))

    def chosen(self, parent: int | None) -> int | None:
        """The child that the active path goes on with; None = there is none."""
        children = self._children.get(parent)
        if not children:
            return None
        wanted = self._root if parent is None else self._rows[parent]["chosen"]
        return wanted if wanted in children else children[-1]

    def path_ids(self) -> list[int]:
        """Ids of the active path, from its root to its leaf."""
        found: list[int] = []
        at = self.chosen(None)
        while at is not None:
            found.append(at)
            at = self.chosen(at)
        return found

    def message(self, message_id: int) -> StoredMessage:
        """One message of this chat.

        Raises:
            UsageError: there is none of that id.
        """
        row = self._rows.get(message_id)
        if row is None:
            raise UsageError(f"There is no message {message_id}.")
        attachments = tuple(self._attachments.get(message_id, ()))
        return _message(row, attachments, tuple(self._children[row["parent"]]))

    def path(self) -> list[StoredMessage]:
        """The messages of the active path."""
        return [self.message(message_id) for message_id in self.path_ids()]

    def all(self) -> list[StoredMessage]:
        """All messages that hang together with a root, parents before children."""
        return [self.message(message_id) for message_id in self._reachable()]

    def _reachable(self) -> Iterable[int]:
        waiting = list(reversed(self._children.get(None, [])))
        while waiting:
            at = waiting.pop()
            yield at
            waiting += reversed(self._children.get(at, []))


def chat_of(connection: sqlite3.Connection, message_id: int) -> int:
    """The chat of a message that is not deleted.

    Raises:
        UsageError: there is none of that id.
    """
    query = """SELECT chat FROM message JOIN chat ON chat.id = message.chat
        WHERE message.id = ? AND message.deletion IS NULL AND chat.deletion IS NULL"""
    row = connection.execute(query, (message_id,)).fetchone() if abs(message_id) < 2**63 else None
    if row is None:
        raise UsageError(f"There is no message {message_id}.")
    return int(row[0])


def is_live(connection: sqlite3.Connection, message_id: int) -> bool:
    """Whether a message can be seen: neither it nor its chat is deleted."""
    query = """SELECT message.deletion IS NULL AND chat.deletion IS NULL
        FROM message JOIN chat ON chat.id = message.chat WHERE message.id = ?"""
    row = connection.execute(query, (message_id,)).fetchone()
    return row is not None and bool(row[0])


def message(connection: sqlite3.Connection, message_id: int) -> StoredMessage:
    """A message of any chat; errors as for `chat_of`."""
    chat_of(connection, message_id)
    return alone(connection, message_id)


def alone(connection: sqlite3.Connection, message_id: int) -> StoredMessage:
    """A message, even a deleted one.

    Raises:
        UsageError: it was erased for good.
    """
    row = connection.execute("SELECT * FROM message WHERE id = ?", (message_id,)).fetchone()
    if row is None:
        raise UsageError(f"There is no message {message_id}.")
    query = "SELECT name, content FROM attachment WHERE message = ? ORDER BY position"
    attachments = tuple(Attachment(*found) for found in connection.execute(query, (message_id,)))
    query = "SELECT id FROM message WHERE chat = ? AND parent IS ? AND (deletion IS NULL OR id = ?) ORDER BY id"
    siblings = connection.execute(query, (row["chat"], row["parent"], message_id))
    return _message(row, attachments, tuple(found[0] for found in siblings))


def insert(
    connection: sqlite3.Connection,
    chat_id: int,
    parent: int | None,
    role: str,
    content: str,
    attachments: Sequence[Attachment] = (),
    **columns: Any,
) -> int:
    """A new message that the active path goes through; its id. Columns left out have their defaults.

    Raises:
        UsageError: chat or parent are not there.
    """
    find(connection, chat_id)
    if parent is not None and chat_of(connection, parent) != chat_id:
        raise UsageError(f"Message {parent} is not in chat {chat_id}.")
    now = time.time()
    row = {"key": fresh_key(), "chat": chat_id, "parent": parent, "role": role, "content": content, "state": "done"}
    added = write(connection, row | {"created": now, "updated": now} | columns, attachments)
    _lead_through(connection, chat_id, added)
    touch(connection, chat_id)
    return added


def write(connection: sqlite3.Connection, row: Mapping[str, Any], attachments: Sequence[Attachment]) -> int:
    """Puts a message into its table, as its columns are named; its id. Those left out have their defaults."""
    values = {name: kept(value) for name, value in row.items()}
    if values.get("seed") is not None:
        values["seed"] = str(values["seed"])  # SQLite's numbers end at 2^63
    places = ", ".join(f":{name}" for name in values)
    cursor = connection.execute(f"INSERT INTO message ({', '.join(values)}) VALUES ({places})", values)
    assert cursor.lastrowid is not None
    connection.executemany(
        "INSERT INTO attachment (message, position, name, content) VALUES (?, ?, ?, ?)",
        [(cursor.lastrowid, at, clean(item.name), clean(item.content)) for at, item in enumerate(attachments)],
    )
    return cursor.lastrowid


def _lead_through(connection: sqlite3.Connection, chat_id: int, message_id: int) -> None:
    """Makes a message and all above it the chosen children of their parents."""
    rows = connection.execute(
        """WITH RECURSIVE above(id, parent, chosen) AS (
            SELECT id, parent, chosen FROM message WHERE id = ?
            UNION ALL SELECT message.id, message.parent, message.chosen
            FROM message JOIN above ON message.id = above.parent
        ) SELECT id, chosen FROM above""",
        (message_id,),
    ).fetchall()
    for child, parent in pairwise(rows):
        if parent["chosen"] != child["id"]:
            connection.execute("UPDATE message SET chosen = ? WHERE id = ?", (child["id"], parent["id"]))
    connection.execute("UPDATE chat SET chosen = ? WHERE id = ?", (rows[-1]["id"], chat_id))


def choose(connection: sqlite3.Connection, message_id: int) -> list[StoredMessage]:
    """Leads the active path through a message; below it, what was chosen there before goes on to hold."""
    chat_id = chat_of(connection, message_id)
    _lead_through(connection, chat_id, message_id)
    return Tree(connection, chat_id).path()


def branch(connection: sqlite3.Connection, message_id: int) -> int:
    """A new chat with copies of a message and of all above it; its id. An answer under way is copied as it is now."""
    chat = find(connection, chat_of(connection, message_id))
    above = {one.id: one for one in Tree(connection, chat.id).all()}
    line: list[StoredMessage] = []
    at: int | None = message_id
    while at is not None:
        line.append(above[at])
        at = above[at].parent_id
    fresh = create(connection, chat.title, chat.system, chat.model, chat.params)
    parent: int | None = None
    for one in reversed(line):
        parent = insert(
            connection,
            fresh,
            parent,
            one.role,
            one.content,
            one.attachments,
            reasoning=one.reasoning,
            state="stopped" if one.state == "streaming" else one.state,
            note=one.note,
            model=one.model,
            seed=one.seed,
            sampling=one.sampling,
            stats=one.stats,
        )
    return fresh


def step(connection: sqlite3.Connection, message_id: int, by: int) -> list[StoredMessage]:
    """Chooses the sibling so many places further on; the first or last one at the ends."""
    siblings = message(connection, message_id).siblings
    at = min(max(siblings.index(message_id) + by, 0), len(siblings) - 1)
    return choose(connection, siblings[at])


def begin(
    connection: sqlite3.Connection,
    parent: int,
    writer: str,
    model: str,
    seed: int | None,
    sampling: Mapping[str, Any],
) -> int:
    """The row of an answer that is about to stream; its id."""
    return insert(
        connection,
        chat_of(connection, parent),
        parent,
        "assistant",
        "",
        state="streaming",
        writer=writer,
        model=model,
        seed=seed,
        sampling=sampling,
    )


def stats(connection: sqlite3.Connection, chat_id: int | None) -> list[Mapping[str, Any]]:
    """Figures of the answers of one chat or of all, oldest first."""
    one = "" if chat_id is None else "AND message.chat = :chat"
    query = f"""SELECT stats FROM message JOIN chat ON chat.id = message.chat WHERE stats <> '{{}}'
        AND message.deletion IS NULL AND chat.deletion IS NULL {one} ORDER BY message.id"""
    return [json.loads(row[0]) for row in connection.execute(query, {"chat": chat_id})]
