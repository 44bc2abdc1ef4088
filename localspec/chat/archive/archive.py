"""The chats on disk: one door to the database, for every face. Thread-safe; two programs may use it at once.

It always opens. If its file cannot be used, chats are kept in memory, `persistent` is False and `notice` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec import paths
from localspec.chat.archive.answer import AnswerWriter, Flusher, Presence, living
from localspec.chat.archive.chats import ArchivedChats, one_line
from localspec.chat.archive.file import clean, reads, reads_apart, writes
from localspec.chat.archive.message import Hit, ImportReport, StoredMessage, WholeChat
from localspec.chat.archive.passes import encode
from localspec.chat.archive.search import search
from localspec.chat.export import KINDS
from localspec.errors import LocalspecError, UsageError
from localspec.types import SamplingParams


class Archive(ArchivedChats):
    """All chats. A context manager; `close` ends answers that still stream."""

    def __init__(self, path: Path | None) -> None:
        """path: the database's file; None = in memory. Faces use `open`."""
        super().__init__(path)
        self._presence = Presence(path if self.persistent else None)
        self._flusher = Flusher(self)
        self._closed = False
        with suppress(LocalspecError):  # busy: the next start tidies
            self._tidy()

    @classmethod
    def open(cls, path: Path | None = None) -> Archive:
        """The archive in the data folder, or in another file; never raises for what is wrong with it."""
        return cls(paths.data_dir() / "chats.sqlite3" if path is None else path)

    def close(self) -> None:
        """Ends running answers as stopped, and closes the file; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._flusher.close()
            self.save_back()
            super().close()
            self._presence.release()

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @writes
    def _tidy(self) -> None:
        """Ends answers whose writer is gone, and sweeps."""
        alive = living(self.file)
        for (writer,) in self._sql("SELECT DISTINCT writer FROM message WHERE writer IS NOT NULL").fetchall():
            if writer not in alive:
                self._sql(
                    "UPDATE message SET state = 'stopped', writer = NULL, note = ? WHERE writer = ?",
                    ("localspec ended before the answer did.", writer),
                )
        self._sweep()

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
        return self._flusher.begin(self._begin(parent_id, model=model, seed=seed, sampling=settings), piece)

    @writes
    def _begin(self, /, parent_id: int, **columns: Any) -> int:
        columns |= {"state": "streaming", "writer": self._presence.name}
        return self._add(self._chat_of(parent_id), parent_id, "assistant", "", **columns)

    def resume_answer(self, message_id: int, *, piece: Callable[[int], bytes] | None = None) -> AnswerWriter:
        """Goes on with an answer that was stopped.

        Raises:
            UsageError: it is no answer, or is being written.
        """
        self._presence.hold()
        self._resume(message_id)
        return self._flusher.begin(message_id, piece)

    @writes
    def _resume(self, message_id: int) -> None:
        message = self.message(message_id)
        if message.role != "assistant" or message.state == "streaming":
            raise UsageError(f"Message {message_id} is no answer that could go on.")
        statement = "UPDATE message SET state = 'streaming', writer = ?, note = '' WHERE id = ?"
        self._sql(statement, (self._presence.name, message_id))

    @property
    @reads
    def version(self) -> int:
        """Another number whenever another process, or another window, has written into the file."""
        return int(self._sql("PRAGMA data_version").fetchone()[0])

    def written_elsewhere(self, message: StoredMessage) -> bool:
        """Whether another process writes this answer now. One whose writer has gone is ended as stopped."""
        writer = self._writer_of(message.id) if message.state == "streaming" else None
        if writer is None or writer == self._presence.name:
            return False
        if writer in living(self.file):
            return True
        self._tidy()
        return False

    @reads
    def _writer_of(self, message_id: int) -> str | None:
        row = self._sql("SELECT writer FROM message WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else row[0]

    @reads_apart
    def search(self, query: str, *, limit: int = 50) -> list[Hit]:
        """Messages, and titles, with all words of a query; any text is a query, see `search.Query`."""
        return search(self._sql, query, limit)

    def export(self, chat_ids: Sequence[int] | None, kind: str) -> str:
        """Chats as a text file: markdown, html or json. None = all of them.

        Raises:
            UsageError: another kind, or a chat that is not there.
        """
        if kind not in KINDS:
            raise UsageError(f"The format is {kind!r}; it must be one of {', '.join(KINDS)}.")
        return KINDS[kind](self._exported(chat_ids))

    @reads_apart
    def _exported(self, chat_ids: Sequence[int] | None) -> list[WholeChat]:
        found: list[WholeChat] = []
        for chat_id in [chat.id for chat in self.chats()] if chat_ids is None else chat_ids:
            whole = self.whole(chat_id)
            replays = {message.id: self.replay(message.id) for message in whole.messages}
            passes = {key: encode(one.passes, one.pieces) for key, one in replays.items() if one.passes}
            found.append(replace(whole, passes=passes))
        return found

    def import_file(self, path: Path) -> ImportReport:
        """Takes in localspec's own JSON or ChatGPT's export (file, folder or zip)."""
        from localspec.chat.import_ import read_file

        report = self._take_in(*read_file(path))
        self.checkpoint()
        return report

    @writes
    def _take_in(self, found: Sequence[WholeChat], left_out: int) -> ImportReport:
        """Adds chats, and to chats that are there the messages that are not. A deleted chat comes back as a new one."""
        new_chats = new_messages = skipped = 0
        for whole in found:
            row = self._sql("SELECT id, deletion FROM chat WHERE key = ?", (clean(whole.chat.key),)).fetchone()
            if row is not None and row["deletion"] is not None:
                self._remove(row["id"])
                row = None
            if row is None:
                kept = ("key", "system", "model", "params", "pinned", "unsent", "window_summary", "created", "used")
                values = {name: getattr(whole.chat, name) for name in kept}
                chat_id = self._insert("chat", values | {"title": one_line(whole.chat.title)})
                self.set_tags(chat_id, whole.chat.tags)
            else:
                chat_id = int(row["id"])
            added = self._take_in_messages(chat_id, whole, follow=row is None)
            new_chats += row is None
            new_messages += added
            skipped += row is not None and not added
        return ImportReport(new_chats, new_messages, skipped, left_out)

    def _take_in_messages(self, chat_id: int, whole: WholeChat, follow: bool) -> int:
        """Adds what is not known by key; returns how many. follow: the file's choice of branches is taken, too."""
        known = dict(self._sql("SELECT key, id FROM message WHERE chat = ?", (chat_id,)).fetchall())
        before = len(known)
        ids: dict[int | None, int | None] = {None: None}
        for message in whole.messages:
            key, parent = clean(message.key), ids[message.parent_id]
            if key not in known:
                known[key] = self._copy(message, key=key, chat=chat_id, parent=parent)
                if message.id in whole.passes:
                    values = (known[key], whole.passes[message.id])
                    self._sql("INSERT INTO passes (message, part, data) VALUES (?, 0, ?)", values)
            ids[message.id] = known[key]
            if follow and message.id in whole.chosen:
                table, above = ("chat", chat_id) if parent is None else ("message", parent)
                self._sql(f"UPDATE {table} SET chosen = ? WHERE id = ?", (known[key], above))
        if follow:
            window = ids.get(whole.chat.window_first)
            self._sql("UPDATE chat SET window_first = ? WHERE id = ?", (window, chat_id))
        return len(known) - before
