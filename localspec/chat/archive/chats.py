"""The archive's rows: chats, messages, deletions, presets and prompts; and a chat's title, from its first message.

Messages are a tree for each chat, in which every message has a chosen child. The chosen children make the active path.
A message without a chosen child that is still there is followed by its newest one.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypedDict

from localspec.chat.archive.file import ArchiveFile, clean, reads, reads_apart, storable, writes
from localspec.chat.archive.message import Attachment, Chat, Deletion, Preset, StoredMessage, WholeChat, moved, placed
from localspec.chat.archive.passes import Replay, decode
from localspec.chat.plain_text import plain_text
from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall
from localspec.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

UNDO_SECONDS = 7 * 86400.0
"""How long something deleted can be brought back."""
_EMPTY_SECONDS = 86400.0
"""How long a chat without messages, title or unsent input is kept."""
_MOST_PROMPTS = 5000
_LONGEST_NAME = 60
_LEAF = -1
"""Stands for the end of the active path where the id of a parent is wanted."""
_APART = {"chat_id", "parent_id", "attachments", "calls", "siblings"}
_SAME = [field.name for field in fields(StoredMessage) if field.name not in _APART]
"""Fields that are columns of the same name."""
_COLUMNS = """chat.*, (SELECT count(*) FROM message WHERE chat = chat.id AND deletion IS NULL) AS messages,
(SELECT group_concat(tag, char(31)) FROM (SELECT tag FROM tag WHERE chat = chat.id ORDER BY tag)) AS tags"""
_LISTED = """(pinned OR unsent <> '' OR EXISTS (
SELECT 1 FROM message WHERE chat = chat.id AND deletion IS NULL))"""
_BELOW = """WITH RECURSIVE below(id) AS (SELECT id FROM message WHERE id = :message
UNION SELECT message.id FROM message JOIN below ON message.parent = below.id)"""


def one_line(text: str) -> str:
    """A title, or another name: on one line, and safe to show."""
    return " ".join(plain_text(clean(text)).split())


# of whatever kind a damaged value is, one of the right kind is read
_CALLS = """SELECT message, CAST(call.id AS BLOB), CAST(name AS BLOB), CAST(arguments AS BLOB), CAST(result AS BLOB),
CAST(round AS INTEGER), CAST(said AS INTEGER), CAST(thought AS INTEGER), failed <> 0, CAST(seconds AS REAL) FROM call"""


def _made(row: sqlite3.Row) -> MadeCall:
    """A row of `_CALLS`."""
    *call, result = (text.decode(errors="replace") for text in row[1:5])
    turn, said, thought, failed, seconds = row[5:]
    return MadeCall(ToolCall(*call), result, turn, said, thought, bool(failed), seconds)


def _message(
    row: sqlite3.Row, attachments: Sequence[Attachment], calls: Sequence[MadeCall], siblings: Sequence[int]
) -> StoredMessage:
    same: dict[str, Any] = {name: row[name] for name in _SAME}
    same |= {name: json.loads(row[name]) for name in ("sampling", "stats")}
    same |= {"chat_id": row["chat"], "parent_id": row["parent"]}
    same["seed"] = None if row["seed"] is None else int(row["seed"])
    same["calls"] = placed(calls, row["content"], row["reasoning"])
    return StoredMessage(**same, attachments=tuple(attachments), siblings=tuple(siblings))


class ChatColumns(TypedDict, total=False):
    """What `update_chat` sets; see `Chat`."""

    title: str
    system: str
    model: str
    params: Mapping[str, Any]
    pinned: bool
    unsent: str
    window_first: int | None
    window_summary: str


class ArchivedChats(ArchiveFile):
    @writes
    def new_chat(
        self, *, title: str = "", system: str = "", model: str = "", params: Mapping[str, Any] | None = None
    ) -> Chat:
        """A chat without messages; it is listed once it has some."""
        now = time.time()
        row = {"key": uuid.uuid4().hex, "title": one_line(title), "system": system, "model": model}
        return self.chat(self._insert("chat", row | {"params": params or {}, "created": now, "used": now}))

    def _chats(self, rest: str, values: Mapping[str, Any] | None = None) -> list[Chat]:
        """Chats that are not deleted."""
        found = []
        for row in self._sql(f"SELECT {_COLUMNS} FROM chat WHERE chat.deletion IS NULL AND {rest}", values or {}):
            same = {field.name: row[field.name] for field in fields(Chat)}
            tags = tuple(row["tags"].split("\x1f")) if row["tags"] else ()
            found.append(
                Chat(**same | {"params": json.loads(row["params"]), "pinned": bool(row["pinned"]), "tags": tags})
            )
        return found

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
        return next(iter(self._chats(f"{_LISTED} ORDER BY used DESC, id DESC LIMIT 1")), None)

    @reads
    def tags(self) -> list[str]:
        query = "SELECT DISTINCT tag FROM tag JOIN chat ON chat.id = tag.chat WHERE deletion IS NULL ORDER BY tag"
        return [row[0] for row in self._sql(query)]

    @writes
    def update_chat(self, chat_id: int, /, **columns: Unpack[ChatColumns]) -> None:
        """Sets columns of a chat, at least one. A title is put on one line."""
        self.chat(chat_id)
        values = {name: storable(one_line(str(value)) if name == "title" else value) for name, value in columns.items()}
        assignments = ", ".join(f"{name} = :{name}" for name in columns)
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
        deletion = self._deletion(deletion_id)
        if deletion.message_id is None:
            self._remove(deletion.chat_id)
            return
        values = {"chat": deletion.chat_id, "message": deletion.message_id}
        self._sql(f"{_BELOW} DELETE FROM message WHERE id IN (SELECT id FROM below)", values)
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

    # Messages

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
        calls: dict[int, list[MadeCall]] = defaultdict(list)
        query = f"{_CALLS} JOIN message ON message.id = message WHERE chat = ? ORDER BY message, position"
        for row in self._sql(query, (chat_id,)):
            calls[row[0]].append(_made(row))
        wanted: dict[int | None, int | None] = {number: row["chosen"] for number, row in rows.items()}
        wanted[None] = self._sql("SELECT chosen FROM chat WHERE id = ?", (chat_id,)).fetchone()[0]
        chosen: set[int] = set()
        messages: list[StoredMessage] = []
        waiting: list[int | None] = [None]
        while waiting:
            at = waiting.pop()
            if at is not None:
                messages.append(_message(rows[at], attachments[at], calls[at], below[rows[at]["parent"]]))
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
        calls = [_made(found) for found in self._sql(f"{_CALLS} WHERE message = ? ORDER BY position", (message_id,))]
        query = "SELECT id FROM message WHERE chat = ? AND parent IS ? AND (deletion IS NULL OR id = ?) ORDER BY id"
        siblings = self._sql(query, (row["chat"], row["parent"], message_id))
        return _message(row, attachments, calls, [found[0] for found in siblings])

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
        `parent`: the message it answers; default the end of the active path, None = it begins the chat anew.
        """
        if parent == _LEAF:
            path = self.path(chat_id)
            parent = path[-1].id if path else None
        added = self._add(chat_id, parent, "user", content, attachments)
        columns: ChatColumns = {"unsent": ""}
        if not self.chat(chat_id).title:
            columns["title"] = title_from(content) or title_from(" ".join(item.name for item in attachments))
        self.update_chat(chat_id, **columns)
        self.add_prompt(content)
        return self.even_deleted(added)

    @writes
    def edit(self, message_id: int, content: str, *, attachments: Sequence[Attachment] | None = None) -> StoredMessage:
        """A new sibling with another text; the old message stays. `attachments`: None = those of the old message. An
        answer keeps its calls."""
        old = self.message(message_id)
        kept = old.attachments if attachments is None else attachments
        added = self._add(old.chat_id, old.parent_id, old.role, content, kept)
        self._add_calls(added, moved(old.calls, old.content, content))
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
        Raises UsageError: chat or parent are not there.
        """
        self.chat(chat_id)
        if parent is not None and self._chat_of(parent) != chat_id:
            raise UsageError(f"Message {parent} is not in chat {chat_id}.")
        now = time.time()
        row = {"key": uuid.uuid4().hex, "chat": chat_id, "parent": parent, "role": role, "content": content}
        added = self._write(row | {"state": "done", "created": now, "updated": now} | columns, attachments)
        self._lead_through(chat_id, added)
        self._sql("UPDATE chat SET used = ? WHERE id = ?", (now, chat_id))
        return added

    def _write(self, row: Mapping[str, Any], attachments: Sequence[Attachment]) -> int:
        seed = row.get("seed")
        added = self._insert("message", {**row, "seed": None if seed is None else str(seed)})  # numbers end at 2^63
        for at, item in enumerate(attachments):
            values = (added, at, clean(item.name), clean(item.content))
            self._sql("INSERT INTO attachment (message, position, name, content) VALUES (?, ?, ?, ?)", values)
        return added

    def _copy(self, message: StoredMessage, **others: Any) -> int:
        """Writes a message with other values in some columns; its id."""
        same = {name: getattr(message, name) for name in _SAME if name != "id"}
        added = self._write(same | others, message.attachments)
        self._add_calls(added, message.calls)
        return added

    def _add_calls(self, message_id: int, calls: Iterable[MadeCall]) -> None:
        """Puts calls after those that a message has."""
        for made in calls:
            call = [clean(text) for text in (made.call.id, made.call.name, made.call.arguments, made.result)]
            values = (*call, made.round, made.said, made.thought, made.failed, made.seconds)
            self._sql(
                """INSERT INTO call SELECT ?1, (SELECT ifnull(max(position), -1) + 1 FROM call WHERE message = ?1),
                ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10""",
                (message_id, *values),
            )

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
            own = {"chat": fresh, "parent": parent, "created": now, "updated": now, "state": state}
            parent = self._copy(one, key=uuid.uuid4().hex, **own)
        if parent is not None:
            self._lead_through(fresh, parent)
        return self.chat(fresh)

    @writes
    def delete_message(self, message_id: int) -> Deletion:
        """Hides a message and everything below it; it can be brought back for a week."""
        deletion = self._deleted(self._chat_of(message_id), message_id)
        self._sql(
            f"{_BELOW} UPDATE message SET deletion = :deletion WHERE id IN (SELECT id FROM below) AND deletion IS NULL",
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
    def add_to_answer(
        self, message_id: int, text: str, reasoning: str, part: bytes | None, calls: Sequence[MadeCall]
    ) -> None:
        """Writes what has come of an answer that streams; its passes as `passes.encode` makes them."""
        cursor = self._sql(
            "UPDATE message SET content = content || ?, reasoning = reasoning || ?, updated = ? WHERE id = ?",
            (clean(text), clean(reasoning), time.time(), message_id),
        )
        if not cursor.rowcount:  # it was erased while it streamed
            return
        self._add_calls(message_id, calls)
        if part is not None:
            self._sql(
                """INSERT INTO passes (message, part, data)
                VALUES (:message, (SELECT ifnull(max(part), -1) + 1 FROM passes WHERE message = :message), :data)""",
                {"message": message_id, "data": part},
            )

    @writes
    def end_answer(self, message_id: int, state: str, stats: Mapping[str, Any], note: str) -> None:
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

    # Presets are kept in the database, so that they share its backup, its mode and its safety when two programs write.

    @reads
    def presets(self) -> list[Preset]:
        rows = self._sql("SELECT name, system, params FROM preset ORDER BY name COLLATE NOCASE, name")
        return [Preset(row[0], row[1], json.loads(row[2])) for row in rows]

    @writes
    def save_preset(self, preset: Preset) -> None:
        """Adds a preset, or replaces the one of that name. Raises UsageError: the name is empty or too long."""
        name = " ".join(clean(preset.name).split())
        if not 1 <= len(name) <= _LONGEST_NAME:
            raise UsageError(f"A preset is named {name[:80]!r}; a name has 1 to {_LONGEST_NAME} characters.")
        values = (name, clean(preset.system), storable(preset.params))
        self._sql("INSERT OR REPLACE INTO preset (name, system, params) VALUES (?, ?, ?)", values)

    @writes
    def delete_preset(self, name: str) -> None:
        """Raises UsageError: there is none of that name."""
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
    plain = plain_text(text)
    lines = (_MARKS.sub("", line).replace("**", "").replace("`", "").split() for line in plain.splitlines())
    words = next((line for line in lines if any(map(str.isalnum, "".join(line)))), plain.split())
    title = " ".join(words)
    if len(title) <= LONGEST_TITLE:
        return title
    short = title[: LONGEST_TITLE - 1]
    at = short.rfind(" ")
    return (short[:at] if at > LONGEST_TITLE // 2 else short).rstrip(" ,;:.") + "…"
