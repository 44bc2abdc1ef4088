"""An answer on its way to disk: collected as it streams, written twice a second by a thread of its own.

`extend` never waits for a disk. What was not yet written when the process is killed is at most half a second's worth.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from localspec.chat.archive import tree
from localspec.chat.archive.chats import clean, json_text
from localspec.chat.archive.database import Database
from localspec.chat.archive.message import StoredMessage
from localspec.chat.archive.passes import Recorder, Replay, decode, encode
from localspec.engine.slot import PassRecord
from localspec.errors import LocalspecError, UsageError

FLUSH_SECONDS = 0.5
"""Between two writings of a streaming answer."""


@dataclass
class _Pending:
    """What has come and is not written."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning)


class AnswerWriter:
    """Made by `Archive.begin_answer`; thread-safe."""

    def __init__(
        self,
        database: Database,
        message_id: int,
        piece: Callable[[int], bytes] | None,
        ended: Callable[[AnswerWriter], None],
    ) -> None:
        self.message_id = message_id
        self._database = database
        self._recorder = Recorder(piece)
        self._ended = ended
        self._pending = _Pending()
        self._lock = threading.Lock()  # of what is collected
        self._writing = threading.RLock()  # taken before it; of the order in which it is written
        self._finished = False

    def extend(self, text: str = "", *, reasoning: str = "", record: PassRecord | None = None) -> None:
        """Takes what one pass brought; after `finish` it does nothing."""
        with self._lock:
            if self._finished:
                return
            if text:
                self._pending.text.append(text)
            if reasoning:
                self._pending.reasoning.append(reasoning)
            if record is not None:
                self._recorder.add(record)

    def flush(self) -> None:
        """Writes what has come since the last time. If the database is busy it stays pending.

        Raises:
            LocalspecError: another process has held the file for too long.
        """
        with self._writing:
            with self._lock:
                taken, self._pending = self._pending, _Pending()
                passes, pieces = self._recorder.fresh()
                done = self._finished
            if done or not (taken or passes):
                return
            part = encode(passes, pieces) if passes else None
            try:
                self._database.write(lambda connection: self._append(connection, taken, part))
            except BaseException:
                with self._lock:
                    self._pending.text[:0] = taken.text
                    self._pending.reasoning[:0] = taken.reasoning
                raise
            with self._lock:
                self._recorder.forget(len(passes), pieces)

    def _append(self, connection: sqlite3.Connection, taken: _Pending, part: bytes | None) -> None:
        cursor = connection.execute(
            "UPDATE message SET content = content || ?, reasoning = reasoning || ?, updated = ? WHERE id = ?",
            (clean("".join(taken.text)), clean("".join(taken.reasoning)), time.time(), self.message_id),
        )
        if part is not None and cursor.rowcount:  # else it was erased while it streamed
            connection.execute(
                """INSERT INTO passes (message, part, data)
                VALUES (:message, (SELECT ifnull(max(part), -1) + 1 FROM passes WHERE message = :message), :data)""",
                {"message": self.message_id, "data": part},
            )

    def finish(self, state: str = "done", *, stats: Mapping[str, Any] | None = None, note: str = "") -> StoredMessage:
        """Writes the rest and how it ended; a second call changes nothing.

        Args:
            state: done, stopped or error.
            stats: of `RequestStats.as_dict`.
            note: what went wrong, in a sentence.

        Raises:
            UsageError: another state, or the message was erased meanwhile.
        """
        if state not in ("done", "stopped", "error"):
            raise UsageError(f"The state of an answer is {state!r}; it must be done, stopped or error.")
        kept = json_text(stats or {})
        with self._writing:
            if not self._finished:
                self.flush()
                self._database.write(self._end(state, kept, note))
                with self._lock:
                    self._finished = True
                self._ended(self)
        return self._database.read(lambda connection: tree.alone(connection, self.message_id))

    def _end(self, state: str, stats: str, note: str) -> Callable[[sqlite3.Connection], None]:
        values = {
            "id": self.message_id,
            "state": state,
            "stats": stats,
            "note": clean(note),
            "now": time.time(),
        }

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                """UPDATE message SET state = :state, stats = :stats, note = :note, updated = :now, writer = NULL
                WHERE id = :id""",
                values,
            )
            connection.execute(
                "UPDATE chat SET used = :now WHERE id = (SELECT chat FROM message WHERE id = :id)", values
            )

        return change


def replay(connection: sqlite3.Connection, message_id: int) -> Replay:
    """What is kept of an answer's origin."""
    tree.chat_of(connection, message_id)
    query = "SELECT data FROM passes WHERE message = ? ORDER BY part"
    return decode(row[0] for row in connection.execute(query, (message_id,)))


class Flusher:
    """The thread that writes streaming answers, started with the first of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writers: list[AnswerWriter] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False

    def add(self, writer: AnswerWriter) -> None:
        """From now on it is written twice a second."""
        with self._lock:
            self._writers.append(writer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="localspec-archive", daemon=True)
                self._thread.start()
        self._wake.set()

    def remove(self, writer: AnswerWriter) -> None:
        """It has ended."""
        with self._lock:
            self._writers = [other for other in self._writers if other is not writer]

    def running(self) -> list[AnswerWriter]:
        """Those that have not ended."""
        with self._lock:
            return list(self._writers)

    def close(self) -> None:
        """Ends what runs as stopped, and the thread."""
        for writer in self.running():
            with suppress(LocalspecError):  # it was erased, or the file is busy: the next start ends it
                writer.finish("stopped", note="localspec was closed before the answer ended.")
        self._closing = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            writers = self.running()
            if not writers and not self._closing:
                self._wake.wait()
                continue
            for writer in writers:
                try:
                    writer.flush()
                except LocalspecError:
                    continue  # busy; it stays pending, and the next round tries again
            self._database.checkpoint()
            if not self._closing:
                self._wake.wait(FLUSH_SECONDS)
