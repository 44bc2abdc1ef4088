"""The chats on disk: one door to the database, for every face. Thread-safe; two programs may use it at once.

It always opens. If its file cannot be used, chats are kept in memory, `persistent` is False and `notice` says why.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec import paths
from localspec.chat.archive import answer, chats, tree
from localspec.chat.archive.answer import AnswerWriter, Flusher
from localspec.chat.archive.chats import title_from
from localspec.chat.archive.database import Database
from localspec.chat.archive.intake import ImportReport, take_in
from localspec.chat.archive.message import Attachment, Chat, Deletion, Hit, Preset, StoredMessage
from localspec.chat.archive.passes import Replay, encode
from localspec.chat.archive.search import search
from localspec.chat.archive.tree import LEAF, Tree
from localspec.chat.export import KINDS, ChatExport
from localspec.claim import Claim, is_held
from localspec.errors import LocalspecError, UsageError
from localspec.types import SamplingParams


class Archive:
    """All chats. A context manager; `close` ends answers that still stream."""

    def __init__(self, path: Path | None) -> None:
        """path: the database's file; None = in memory. Faces use `open`."""
        self._database = Database(path)
        self._presence = Presence(path if self._database.persistent else None)
        self._flusher = Flusher(self._database)
        self._closed = False
        with suppress(LocalspecError):  # busy: the next start tidies
            self._database.write(self._tidy)

    @classmethod
    def open(cls, path: Path | None = None) -> Archive:
        """The archive in the data folder, or in another file; never raises for what is wrong with it."""
        return cls(paths.data_dir() / "chats.sqlite3" if path is None else path)

    @property
    def file(self) -> Path | None:
        """Where it is, or would be."""
        return self._database.path

    @property
    def persistent(self) -> bool:
        """Whether what is written lasts."""
        return self._database.persistent

    @property
    def notice(self) -> str:
        """One sentence to show the user; "" = nothing is wrong. May come while it is used."""
        return self._database.notice

    @property
    def on_notice(self) -> Callable[[str], None] | None:
        """Hears of a notice that comes later, on whatever thread it happens."""
        return self._database.on_notice

    @on_notice.setter
    def on_notice(self, listener: Callable[[str], None] | None) -> None:
        self._database.on_notice = listener

    def save_back(self) -> bool:
        """If what is written does not last: writes it into the file, if there is room by now. Whether it lasts then."""
        return self._database.save_back()

    def close(self) -> None:
        """Ends running answers as stopped, and closes the file; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._flusher.close()
            self._database.save_back()
            self._database.close()
            self._presence.release()

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """Ends answers whose writer is gone, and sweeps."""
        alive = living(self.file) if self.file is not None else set()
        query = "SELECT DISTINCT writer FROM message WHERE writer IS NOT NULL"
        for (writer,) in connection.execute(query).fetchall():
            if writer not in alive:
                connection.execute(
                    "UPDATE message SET state = 'stopped', writer = NULL, note = ? WHERE writer = ?",
                    ("localspec ended before the answer did.", writer),
                )
        chats.sweep(connection)

    # Chats

    def new_chat(
        self, *, title: str = "", system: str = "", model: str = "", params: Mapping[str, Any] | None = None
    ) -> Chat:
        """A chat without messages; it is listed once it has some."""

        def change(connection: sqlite3.Connection) -> Chat:
            return chats.find(connection, chats.create(connection, title, system, model, params or {}))

        return self._database.write(change)

    def chat(self, chat_id: int) -> Chat:
        """A chat by id. Raises UsageError if there is none, as all methods that take one."""
        return self._database.read(lambda connection: chats.find(connection, chat_id))

    def chat_of_key(self, key: str) -> Chat | None:
        """A chat by its key; None = there is none, or it is deleted."""
        return self._database.read(lambda connection: chats.of_key(connection, key))

    def chats(self, *, tag: str | None = None, limit: int | None = None) -> list[Chat]:
        """Pinned chats first, then those used last."""
        return self._database.read(lambda connection: chats.listed(connection, tag, limit))

    def last_chat(self) -> Chat | None:
        """The one used last."""
        return self._database.read(chats.last)

    def tags(self) -> list[str]:
        """All tags in use."""
        return self._database.read(chats.tags)

    def rename(self, chat_id: int, title: str) -> None:
        """Gives a chat another title."""
        self._set(chat_id, title=chats.one_line(title))

    def pin(self, chat_id: int, pinned: bool = True) -> None:
        """Puts a chat at the head of the list, or back."""
        self._set(chat_id, pinned=pinned)

    def set_tags(self, chat_id: int, tags: Iterable[str]) -> None:
        """Replaces a chat's tags."""
        self._database.write(lambda connection: chats.set_tags(connection, chat_id, tags))

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
        """Keeps what stands in the input."""
        self._set(chat_id, unsent=text)

    def set_window(self, chat_id: int, first_message_id: int | None, summary: str = "") -> None:
        """From now on the model sees a chat from this message on, and the summary instead of what came before."""
        self._set(chat_id, window_first=first_message_id, window_summary=summary)

    def _set(self, chat_id: int, **columns: Any) -> None:
        self._database.write(lambda connection: chats.change(connection, chat_id, **columns))

    def delete_chat(self, chat_id: int) -> Deletion:
        """Hides a chat; it can be brought back for a week."""
        return self._database.write(lambda connection: chats.delete(connection, chat_id, None))

    def delete_message(self, message_id: int) -> Deletion:
        """Hides a message and everything below it, in the same way."""

        def change(connection: sqlite3.Connection) -> Deletion:
            return chats.delete(connection, tree.chat_of(connection, message_id), message_id)

        return self._database.write(change)

    def undo(self, deletion_id: int) -> None:
        """Brings back what was deleted, and leads the active path through it."""

        def change(connection: sqlite3.Connection) -> None:
            message_id = chats.undo(connection, deletion_id).message_id
            if message_id is not None and tree.is_live(connection, message_id):
                tree.choose(connection, message_id)

        self._database.write(change)

    def deletions(self) -> list[Deletion]:
        """What can be brought back, newest first."""
        return self._database.read(chats.deletions)

    def erase(self, deletion_id: int) -> None:
        """Removes what was deleted for good."""
        self._database.write(lambda connection: chats.erase(connection, deletion_id))

    # Messages

    def path(self, chat_id: int) -> list[StoredMessage]:
        """The active path, from its first message to its last."""
        return self._database.read(lambda connection: Tree(connection, chat_id).path())

    def tree(self, chat_id: int) -> list[StoredMessage]:
        """All messages of a chat, parents before children."""
        return self._database.read(lambda connection: Tree(connection, chat_id).all())

    def message(self, message_id: int) -> StoredMessage:
        """A message by id."""
        return self._database.read(lambda connection: tree.message(connection, message_id))

    def append_user(
        self, chat_id: int, content: str, *, attachments: Sequence[Attachment] = (), parent: int | None = LEAF
    ) -> StoredMessage:
        """A message of the user's; a chat without a title gets one, its unsent input is sent.

        Args:
            parent: the message it answers; default the end of the active path, None = it begins the chat anew.
        """

        def change(connection: sqlite3.Connection) -> StoredMessage:
            above = parent
            if above == LEAF:
                above = next(iter(reversed(Tree(connection, chat_id).path_ids())), None)
            added = tree.insert(connection, chat_id, above, "user", content, attachments)
            columns = {"unsent": ""}
            if not chats.find(connection, chat_id).title:
                columns["title"] = title_from(content) or title_from(" ".join(item.name for item in attachments))
            chats.change(connection, chat_id, **columns)
            chats.add_prompt(connection, content)
            return tree.alone(connection, added)

        return self._database.write(change)

    def edit(self, message_id: int, content: str, *, attachments: Sequence[Attachment] | None = None) -> StoredMessage:
        """A new sibling with another text; the old message stays.

        Args:
            attachments: None = those of the old message.
        """

        def change(connection: sqlite3.Connection) -> StoredMessage:
            old = tree.message(connection, message_id)
            kept = old.attachments if attachments is None else attachments
            added = tree.insert(connection, old.chat_id, old.parent_id, old.role, content, kept)
            if old.role == "user":
                chats.add_prompt(connection, content)
            return tree.alone(connection, added)

        return self._database.write(change)

    def branch(self, message_id: int) -> Chat:
        """A new chat with copies of a message and of all before it."""

        def change(connection: sqlite3.Connection) -> Chat:
            return chats.find(connection, tree.branch(connection, message_id))

        return self._database.write(change)

    def begin_answer(
        self,
        parent_id: int,
        *,
        model: str = "",
        seed: int | None = None,
        sampling: Mapping[str, Any] | SamplingParams | None = None,
        piece: Callable[[int], bytes] | None = None,
    ) -> AnswerWriter:
        """An answer below a message, about to stream; a second one below the same message is its sibling.

        Args:
            piece: bytes of a token, kept so that the answer's origin can be shown without the model.
        """
        settings = asdict(sampling) if isinstance(sampling, SamplingParams) else sampling or {}
        self._presence.hold()
        message_id = self._database.write(
            lambda connection: tree.begin(connection, parent_id, self._presence.name, model, seed, settings)
        )
        return self._writer(message_id, piece)

    def resume_answer(self, message_id: int, *, piece: Callable[[int], bytes] | None = None) -> AnswerWriter:
        """Goes on with an answer that was stopped.

        Raises:
            UsageError: it is no answer, or is being written.
        """
        self._presence.hold()

        def change(connection: sqlite3.Connection) -> None:
            message = tree.message(connection, message_id)
            if message.role != "assistant" or message.state == "streaming":
                raise UsageError(f"Message {message_id} is no answer that could go on.")
            connection.execute(
                "UPDATE message SET state = 'streaming', writer = ?, note = '' WHERE id = ?",
                (self._presence.name, message_id),
            )

        self._database.write(change)
        return self._writer(message_id, piece)

    def _writer(self, message_id: int, piece: Callable[[int], bytes] | None) -> AnswerWriter:
        writer = AnswerWriter(self._database, message_id, piece, self._flusher.remove)
        self._flusher.add(writer)
        return writer

    @property
    def version(self) -> int:
        """Another number whenever another process, or another window, has written into the file."""
        return self._database.read(lambda connection: int(connection.execute("PRAGMA data_version").fetchone()[0]))

    def written_elsewhere(self, message: StoredMessage) -> bool:
        """Whether another process writes this answer now. One whose writer has gone is ended as stopped."""
        if message.state != "streaming":
            return False

        def find(connection: sqlite3.Connection) -> str | None:
            row = connection.execute("SELECT writer FROM message WHERE id = ?", (message.id,)).fetchone()
            return None if row is None else row[0]

        writer = self._database.read(find)
        if writer is None or writer == self._presence.name:
            return False
        if self.file is not None and writer in living(self.file):
            return True
        self._database.write(self._tidy)
        return False

    def choose(self, message_id: int) -> list[StoredMessage]:
        """Leads the active path through a message; the new path."""
        return self._database.write(lambda connection: tree.choose(connection, message_id))

    def sibling(self, message_id: int, step: int) -> list[StoredMessage]:
        """Chooses the sibling so many places further (negative: back), at most to the ends; the new path."""
        return self._database.write(lambda connection: tree.step(connection, message_id, step))

    def replay(self, message_id: int) -> Replay:
        """How an answer came about, pass by pass."""
        return self._database.read(lambda connection: answer.replay(connection, message_id))

    def stats(self, chat_id: int | None = None) -> list[Mapping[str, Any]]:
        """Figures of the answers of a chat, or of all, oldest first."""
        return self._database.read_apart(lambda connection: tree.stats(connection, chat_id))

    # The rest

    def add_prompt(self, text: str) -> None:
        """Puts a text into the prompt history; `append_user` and `edit` do so by themselves."""
        self._database.write(lambda connection: chats.add_prompt(connection, text))

    def prompts(self, limit: int = 200, containing: str = "") -> list[str]:
        """The prompt history, newest first."""
        return self._database.read(lambda connection: chats.prompts(connection, limit, containing))

    def search(self, query: str, *, limit: int = 50) -> list[Hit]:
        """Messages, and titles, with all words of a query; any text is a query, see `search.Query`."""
        return self._database.read_apart(lambda connection: search(connection, query, limit))

    def presets(self) -> list[Preset]:
        """All presets by name."""
        return self._database.read(chats.list_presets)

    def save_preset(self, preset: Preset) -> None:
        """Adds or replaces a preset."""
        self._database.write(lambda connection: chats.save_preset(connection, preset))

    def delete_preset(self, name: str) -> None:
        """Removes a preset."""
        self._database.write(lambda connection: chats.delete_preset(connection, name))

    def export(self, chat_ids: Sequence[int] | None, kind: str) -> str:
        """Chats as a text file: markdown, html or json. None = all of them.

        Raises:
            UsageError: another kind, or a chat that is not there.
        """
        if kind not in KINDS:
            raise UsageError(f"The format is {kind!r}; it must be one of {', '.join(KINDS)}.")

        def question(connection: sqlite3.Connection) -> list[ChatExport]:
            wanted = [chat.id for chat in chats.listed(connection, None, None)] if chat_ids is None else chat_ids
            return [self._exported(connection, chat_id) for chat_id in wanted]

        return KINDS[kind](self._database.read_apart(question))

    @staticmethod
    def _exported(connection: sqlite3.Connection, chat_id: int) -> ChatExport:
        found = Tree(connection, chat_id)
        messages = found.all()
        chosen = (found.chosen(parent) for parent in (None, *(message.id for message in messages)))
        passes = {}
        for message in messages:
            replay = answer.replay(connection, message.id)
            if replay.passes:
                passes[message.id] = encode(replay.passes, replay.pieces)
        return ChatExport(
            found.chat, found.path(), messages, frozenset(child for child in chosen if child is not None), passes
        )

    def import_file(self, path: Path) -> ImportReport:
        """Takes in localspec's own JSON or ChatGPT's export (file, folder or zip)."""
        from localspec.chat.import_ import read_file

        found, left_out = read_file(path)
        report = self._database.write(lambda connection: take_in(connection, found, left_out))
        self._database.checkpoint()
        return report


# Tells whether the process that was writing an answer is still there: a claimed file beside the archive.


class Presence:
    """Held by one open archive for as long as it is open."""

    def __init__(self, archive: Path | None) -> None:
        """archive: the database's file; None = it is in memory, and has no other reader."""
        self._archive = archive
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        self.name = secrets.token_hex(8)

    def hold(self) -> None:
        """Claims the file; where that cannot be done, others take this process for gone."""
        with self._lock, suppress(OSError):
            if self._archive is not None and self._claim is None:
                self._claim = Claim(_place(self._archive, self.name))

    def release(self) -> None:
        """Lets go and removes the file."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None


def living(archive: Path) -> set[str]:
    """Names of all holders that live; removes what dead ones left."""
    start = _place(archive, "").name
    with suppress(OSError):
        places = [path for path in archive.parent.iterdir() if path.name.startswith(start)]
        return {path.name.removeprefix(start) for path in places if is_held(path)}
    return set()


def _place(archive: Path, name: str) -> Path:
    return archive.with_name(f"{archive.name}.writer-{name}")
