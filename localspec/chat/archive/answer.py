"""An answer on its way to disk: collected as it streams, written twice a second by a thread of its own.

`extend` never waits for a disk. What was not yet written when the process is killed is at most half a second's worth.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.chat.archive.file import storable
from localspec.chat.archive.message import StoredMessage
from localspec.chat.archive.messages import ArchivedMessages
from localspec.chat.archive.passes import Recorder, encode
from localspec.engine.slot import PassRecord
from localspec.errors import LocalspecError, UsageError
from localspec.processes import Claim, is_held

FLUSH_SECONDS = 0.5
"""Between two writings of a streaming answer."""


class AnswerWriter:
    """Made by `Archive.begin_answer`; thread-safe."""

    def __init__(
        self,
        archive: ArchivedMessages,
        message_id: int,
        piece: Callable[[int], bytes] | None,
        ended: Callable[[AnswerWriter], None],
    ) -> None:
        self.message_id = message_id
        self._archive = archive
        self._recorder = Recorder(piece)
        self._ended = ended
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._lock = threading.Lock()  # of what is collected
        self._writing = threading.RLock()  # taken before it; of the order in which it is written
        self._finished = False

    def extend(self, text: str = "", *, reasoning: str = "", record: PassRecord | None = None) -> None:
        """Takes what one pass brought; after `finish` it does nothing."""
        with self._lock:
            if self._finished:
                return
            if text:
                self._text.append(text)
            if reasoning:
                self._reasoning.append(reasoning)
            if record is not None:
                self._recorder.add(record)

    def flush(self) -> None:
        """Writes what has come since the last time. If the database is busy it stays pending.

        Raises:
            LocalspecError: another process has held the file for too long.
        """
        with self._writing:
            with self._lock:
                text, reasoning = list(self._text), list(self._reasoning)
                passes, pieces = self._recorder.fresh()
                done = self._finished
            if done or not (text or reasoning or passes):
                return
            part = encode(passes, pieces) if passes else None
            self._archive.add_to_answer(self.message_id, "".join(text), "".join(reasoning), part)
            with self._lock:
                del self._text[: len(text)], self._reasoning[: len(reasoning)]
                self._recorder.forget(len(passes), pieces)

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
        storable(stats or {})  # raises before anything is written
        with self._writing:
            if not self._finished:
                self.flush()
                self._archive.end_answer(self.message_id, state, stats or {}, note)
                with self._lock:
                    self._finished = True
                self._ended(self)
        return self._archive.even_deleted(self.message_id)


class Flusher:
    """The thread that writes streaming answers, started with the first of them."""

    def __init__(self, archive: ArchivedMessages) -> None:
        self._archive = archive
        self._writers: list[AnswerWriter] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False

    def begin(self, message_id: int, piece: Callable[[int], bytes] | None) -> AnswerWriter:
        """A writer whose text is written twice a second from now on, until it has ended."""
        writer = AnswerWriter(self._archive, message_id, piece, self._remove)
        with self._lock:
            self._writers.append(writer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="localspec-archive", daemon=True)
                self._thread.start()
        self._wake.set()
        return writer

    def _remove(self, writer: AnswerWriter) -> None:
        with self._lock:
            self._writers = [other for other in self._writers if other is not writer]

    def close(self) -> None:
        """Ends what runs as stopped, and the thread."""
        for writer in self._writers:
            with suppress(LocalspecError):  # it was erased, or the file is busy: the next start ends it
                writer.finish("stopped", note="localspec was closed before the answer ended.")
        self._closing = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            writers = self._writers  # `_remove` makes a new list
            if not writers and not self._closing:
                self._wake.wait()
                continue
            for writer in writers:
                with suppress(LocalspecError):  # busy; it stays pending, and the next round tries again
                    writer.flush()
            self._archive.checkpoint()
            if not self._closing:
                self._wake.wait(FLUSH_SECONDS)


class Presence:
    """Says that the process which writes an answer is still there: a claimed file beside the archive."""

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


def living(archive: Path | None) -> set[str]:
    """Names of all holders that live; removes what dead ones left."""
    if archive is None:
        return set()
    start = _place(archive, "").name
    with suppress(OSError):
        places = [path for path in archive.parent.iterdir() if path.name.startswith(start)]
        return {path.name.removeprefix(start) for path in places if is_held(path)}
    return set()


def _place(archive: Path, name: str) -> Path:
    return archive.with_name(f"{archive.name}.writer-{name}")
