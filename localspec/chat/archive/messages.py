"""The archive's rows of messages: a tree for each chat, in which every message has a chosen child.

The chosen children make the active path. A message without a chosen child that is still there is followed by its
newest one.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import pairwise
from typing import Any

from localspec.chat.archive.chats import BELOW, ArchivedChats, fresh_key, title_from
from localspec.chat.archive.file import clean, reads, reads_apart, storable, writes
from localspec.chat.archive.message import Attachment, Chat, Deletion, StoredMessage, WholeChat
from localspec.chat.archive.passes import Replay, decode
from localspec.errors import UsageError

_LEAF = -1
"""Stands for the end of the active path where the id of a parent is wanted."""
_APART = {"chat_id", "parent_id", "attachments", "siblings"}
_SAME = [field.name for field in fields(StoredMessage) if field.name not in _APART]
"""Fields that are columns of the same name."""


def _message(row: sqlite3.Row, attachments: Sequence[Attachment], siblings: Sequence[int]) -> StoredMessage:
    same: dict[str, Any] = {name: row[name] for name in _SAME}
    same |= {
        "chat_id": row["chat"],
        "parent_id": row["parent"],
        "seed": None if row["seed"] is None else int(row["seed"]),
    }
    same |= {name: json.loads(row[name]) for name in ("sampling", "stats")}
    return StoredMessage(**same, attachments=tuple(attachments), siblings=tuple(siblings))


class ArchivedMessages(ArchivedChats):
    """Chats with their messages."""

    @reads
    def whole(self, chat_id: int) -> WholeChat:
        """A chat with the messages that are not deleted and hang together with a root."""
        chat = self.chat(chat_id)
        query = "SELECT * FROM message WHERE chat = ? AND deletion IS NULL ORDER BY id"
        rows = {row["id"]: row for row in self._sql(query, (chat_id,))}
        below: dict[int | None, list[int]] = defaultdict(list)
        for number, row in rows.items():
            below[row["parent"]].append(number)
        attachments: dict[int, list[Attachment]] = defaultdict(list)
        query = """SELECT message, name, attachment.content FROM attachment JOIN message ON message.id = message
            WHERE chat = ? ORDER BY message, position"""
        for message, name, content in self._sql(query, (chat_id,)):
            attachments[message].append(Attachment(name, content))
        wanted: dict[int | None, int | None] = {number: row["chosen"] for number, row in rows.items()}
        wanted[None] = self._sql("SELECT chosen FROM chat WHERE id = ?", (chat_id,)).fetchone()[0]
        chosen: set[int] = set()
        messages: list[StoredMessage] = []
        waiting: list[int | None] = [None]
        while waiting:
            at = waiting.pop()
            if at is not None:
                messages.append(_message(rows[at], attachments[at], below[rows[at]["parent"]]))
            if children := below[at]:
                child = wanted[at]
                chosen.add(child if child is not None and child in children else children[-1])
                waiting += reversed(children)
        return WholeChat(chat, messages, frozenset(chosen))

    def path(self, chat_id: int) -> list[StoredMessage]:
        """The active path, from its first message to its last."""
        return self.whole(chat_id).path

    def tree(self, chat_id: int) -> list[StoredMessage]:
        """All messages of a chat, parents before children."""
        return list(self.whole(chat_id).messages)

    @reads
    def message(self, message_id: int) -> StoredMessage:
        """A message by id."""
        self._chat_of(message_id)
        return self.even_deleted(message_id)

    @reads
    def even_deleted(self, message_id: int) -> StoredMessage:
        """A message by id, even if it can only be brought back."""
        row = self._sql("SELECT * FROM message WHERE id = ?", (message_id,)).fetchone()
        if row is None:
            raise UsageError(f"There is no message {message_id}.")
        query = "SELECT name, content FROM attachment WHERE message = ? ORDER BY position"
        attachments = [Attachment(*found) for found in self._sql(query, (message_id,))]
        query = "SELECT id FROM message WHERE chat = ? AND parent IS ? AND (deletion IS NULL OR id = ?) ORDER BY id"
        siblings = self._sql(query, (row["chat"], row["parent"], message_id))
        return _message(row, attachments, [found[0] for found in siblings])

    def _chat_of(self, message_id: int) -> int:
        """The chat of a message that is not deleted."""
        query = """SELECT chat FROM message JOIN chat ON chat.id = message.chat
            WHERE message.id = ? AND message.deletion IS NULL AND chat.deletion IS NULL"""
        row = self._sql(query, (message_id,)).fetchone() if abs(message_id) < 2**63 else None
        if row is None:
            raise UsageError(f"There is no message {message_id}.")
        return int(row[0])

    @writes
    def append_user(
        self, chat_id: int, content: str, *, attachments: Sequence[Attachment] = (), parent: int | None = _LEAF
    ) -> StoredMessage:
        """A message of the user's; a chat without a title gets one, its unsent input is sent.

        Args:
            parent: the message it answers; default the end of the active path, None = it begins the chat anew.
        """
        if parent == _LEAF:
            path = self.path(chat_id)
            parent = path[-1].id if path else None
        added = self._add(chat_id, parent, "user", content, attachments)
        columns = {"unsent": ""}
        if not self.chat(chat_id).title:
            columns["title"] = title_from(content) or title_from(" ".join(item.name for item in attachments))
        self._set(chat_id, **columns)
        self.add_prompt(content)
        return self.even_deleted(added)

    @writes
    def edit(self, message_id: int, content: str, *, attachments: Sequence[Attachment] | None = None) -> StoredMessage:
        """A new sibling with another text; the old message stays.

        Args:
            attachments: None = those of the old message.
        """
        old = self.message(message_id)
        kept = old.attachments if attachments is None else attachments
        added = self._add(old.chat_id, old.parent_id, old.role, content, kept)
        if old.role == "user":
            self.add_prompt(content)
        return self.even_deleted(added)

    def _add(
        self,
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
        self.chat(chat_id)
        if parent is not None and self._chat_of(parent) != chat_id:
            raise UsageError(f"Message {parent} is not in chat {chat_id}.")
        now = time.time()
        row = {"key": fresh_key(), "chat": chat_id, "parent": parent, "role": role, "content": content, "state": "done"}
        added = self._write(row | {"created": now, "updated": now} | columns, attachments)
        self._lead_through(chat_id, added)
        self._sql("UPDATE chat SET used = ? WHERE id = ?", (now, chat_id))
        return added

    def _write(self, row: Mapping[str, Any], attachments: Sequence[Attachment]) -> int:
        """Puts a message into its table; its id."""
        seed = row.get("seed")
        added = self._insert("message", {**row, "seed": None if seed is None else str(seed)})  # numbers end at 2^63
        for at, item in enumerate(attachments):
            values = (added, at, clean(item.name), clean(item.content))
            self._sql("INSERT INTO attachment (message, position, name, content) VALUES (?, ?, ?, ?)", values)
        return added

    def _copy(self, message: StoredMessage, **others: Any) -> int:
        """Writes a message with other values in some columns; its id."""
        same = {name: getattr(message, name) for name in _SAME if name != "id"}
        return self._write(same | others, message.attachments)

    def _lead_through(self, chat_id: int, message_id: int) -> None:
        """Makes a message and all above it the chosen children of their parents."""
        rows = self._sql(
            """WITH RECURSIVE above(id, parent, chosen) AS (
                SELECT id, parent, chosen FROM message WHERE id = ?
                UNION ALL SELECT message.id, message.parent, message.chosen
                FROM message JOIN above ON message.id = above.parent
            ) SELECT id, chosen FROM above""",
            (message_id,),
        ).fetchall()
        for child, parent in pairwise(rows):
            if parent["chosen"] != child["id"]:
                self._sql("UPDATE message SET chosen = ? WHERE id = ?", (child["id"], parent["id"]))
        self._sql("UPDATE chat SET chosen = ? WHERE id = ?", (rows[-1]["id"], chat_id))

    @writes
    def choose(self, message_id: int) -> list[StoredMessage]:
        """Leads the active path through a message; the new path. Below it, what was chosen there before holds."""
        chat_id = self._chat_of(message_id)
        self._lead_through(chat_id, message_id)
        return self.path(chat_id)

    @writes
    def sibling(self, message_id: int, step: int) -> list[StoredMessage]:
        """Chooses the sibling so many places further (negative: back), at most to the ends; the new path."""
        siblings = self.message(message_id).siblings
        return self.choose(siblings[min(max(siblings.index(message_id) + step, 0), len(siblings) - 1)])

    @writes
    def branch(self, message_id: int) -> Chat:
        """A new chat with copies of a message and of all before it. An answer under way is copied as it is now."""
        whole = self.whole(self._chat_of(message_id))
        above = {one.id: one for one in whole.messages}
        line: list[StoredMessage] = []
        at: int | None = message_id
        while at is not None:
            line.append(above[at])
            at = above[at].parent_id
        old = whole.chat
        fresh = self.new_chat(title=old.title, system=old.system, model=old.model, params=old.params).id
        parent: int | None = None
        for one in reversed(line):
            state, now = "stopped" if one.state == "streaming" else one.state, time.time()
            own = {"key": fresh_key(), "chat": fresh, "parent": parent, "created": now, "updated": now, "state": state}
            parent = self._copy(one, **own)
        if parent is not None:
            self._lead_through(fresh, parent)
        return self.chat(fresh)

    @writes
    def delete_message(self, message_id: int) -> Deletion:
        """Hides a message and everything below it; it can be brought back for a week."""
        deletion = self._deleted(self._chat_of(message_id), message_id)
        self._sql(
            f"{BELOW} UPDATE message SET deletion = :deletion WHERE id IN (SELECT id FROM below) AND deletion IS NULL",
            {"deletion": deletion.id, "message": message_id},
        )
        return deletion

    @writes
    def undo(self, deletion_id: int) -> None:
        """Brings back what was deleted, and leads the active path through it. What lies below something that is still
        deleted comes back with that.
        """
        message_id = self._deletion(deletion_id).message_id
        self._sql("UPDATE chat SET deletion = NULL WHERE deletion = ?", (deletion_id,))
        if message_id is not None:
            query = "SELECT deletion FROM message WHERE id = (SELECT parent FROM message WHERE id = ?)"
            row = self._sql(query, (message_id,)).fetchone()
            above = None if row is None else row[0]
            self._sql("UPDATE message SET deletion = ? WHERE deletion = ?", (above, deletion_id))
        self._sql("DELETE FROM deletion WHERE id = ?", (deletion_id,))
        if message_id is not None:
            with suppress(UsageError):  # it, or its chat, is still deleted
                self.choose(message_id)

    # Answers

    @writes
    def add_to_answer(self, message_id: int, text: str, reasoning: str, part: bytes | None) -> None:
        """Writes what has come of an answer that streams; its passes as `passes.encode` makes them."""
        cursor = self._sql(
            "UPDATE message SET content = content || ?, reasoning = reasoning || ?, updated = ? WHERE id = ?",
            (clean(text), clean(reasoning), time.time(), message_id),
        )
        if part is not None and cursor.rowcount:  # else it was erased while it streamed
            self._sql(
                """INSERT INTO passes (message, part, data)
                VALUES (:message, (SELECT ifnull(max(part), -1) + 1 FROM passes WHERE message = :message), :data)""",
                {"message": message_id, "data": part},
            )

    @writes
    def end_answer(self, message_id: int, state: str, stats: Mapping[str, Any], note: str) -> None:
        """Writes how an answer that streamed has ended."""
        values = {"id": message_id, "state": state, "stats": storable(stats), "note": clean(note), "now": time.time()}
        self._sql(
            """UPDATE message SET state = :state, stats = :stats, note = :note, updated = :now, writer = NULL
            WHERE id = :id""",
            values,
        )
        self._sql("UPDATE chat SET used = :now WHERE id = (SELECT chat FROM message WHERE id = :id)", values)

    @reads
    def replay(self, message_id: int) -> Replay:
        """How an answer came about, pass by pass."""
        self._chat_of(message_id)
        query = "SELECT data FROM passes WHERE message = ? ORDER BY part"
        return decode(row[0] for row in self._sql(query, (message_id,)))

    @reads_apart
    def stats(self, chat_id: int | None = None) -> list[Mapping[str, Any]]:
        """Figures of the answers of a chat, or of all, oldest first."""
        one = "" if chat_id is None else "AND message.chat = :chat"
        query = f"""SELECT stats FROM message JOIN chat ON chat.id = message.chat WHERE stats <> '{{}}'
            AND message.deletion IS NULL AND chat.deletion IS NULL {one} ORDER BY message.id"""
        return [json.loads(row[0]) for row in self._sql(query, {"chat": chat_id})]
