"""The chats on disk: one door to the database, for every face. Thread-safe; two programs may use it at once.

It always opens. If its file cannot be used, chats are kept in memory, `persistent` is False and `notice` says why.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.archive.chats import ArchivedChats, one_line
from localspec.chat.archive.file import clean, reads, reads_apart, storable, writes
from localspec.chat.archive.message import Hit, ImportReport, StoredMessage, WholeChat
from localspec.chat.archive.passes import Recorder, encode
from localspec.chat.export import KINDS
from localspec.chat.turn import PARAGRAPH, MadeCall
from localspec.engine.slot import PassRecord
from localspec.errors import LocalspecError, UsageError
from localspec.processes import Claim, is_held
from localspec.types import SamplingParams

FLUSH_SECONDS = 0.5
"""Between two writings of a streaming answer."""


class AnswerWriter:
    """An answer on its way to disk, made by `Archive.begin_answer`; thread-safe.

    `extend` never waits for a disk: a thread writes twice a second. What was not yet written when the process is killed
    is at most half a second's worth.
    """

    def __init__(self, archive: ArchivedChats, begun: StoredMessage, piece: Callable[[int], bytes] | None) -> None:
        self.message_id = begun.id
        self._said, self._thought = len(begun.content), len(begun.reasoning)  # characters so far
        self._first = begun.calls[-1].round + 1 if begun.calls else 0  # round of the next call
        self._archive = archive
        self._recorder = Recorder(piece)
        self._text, self._reasoning, self._calls = list[str](), list[str](), list[MadeCall]()
        self._lock = threading.Lock()  # of what is collected
        self._writing = threading.RLock()  # taken before it; of the order in which it is written
        self.finished = False

    def extend(self, text: str = "", *, reasoning: str = "", record: PassRecord | None = None) -> None:
        """Takes what one pass brought; after `finish` it does nothing."""
        with self._lock:
            if not self.finished:
                self._text += [text] * bool(text)
                self._reasoning += [reasoning] * bool(reasoning)
                self._said, self._thought = self._said + len(text), self._thought + len(reasoning)
                if record is not None:
                    self._recorder.add(record)

    def add_call(self, made: MadeCall) -> None:
        """Takes a call that was made, with its result, and puts it after what has been said; after `finish` it does
        nothing. Its round counts from when this writer was made."""
        with self._lock:
            if not self.finished:
                made = replace(made, round=made.round + self._first, said=self._said, thought=self._thought)
                self._calls.append(made)

    def flush(self) -> None:
        """Writes what has come since the last time. If the database is busy it stays pending.
        Raises LocalspecError: another process has held the file for too long.
        """
        with self._writing:
            with self._lock:
                text, reasoning, calls = [*self._text], [*self._reasoning], [*self._calls]
                passes, pieces = self._recorder.fresh()
                done = self.finished
            if done or not (text or reasoning or passes or calls):
                return
            part = encode(passes, pieces) if passes else None
            self._archive.add_to_answer(self.message_id, "".join(text), "".join(reasoning), part, calls)
            with self._lock:
                del self._text[: len(text)], self._reasoning[: len(reasoning)], self._calls[: len(calls)]
                self._recorder.forget(len(passes), pieces)

    def finish(self, state: str = "done", *, stats: Mapping[str, Any] | None = None, note: str = "") -> StoredMessage:
        """Writes the rest and how it ended; a second call changes nothing. `stats`: of `RequestStats.as_dict`. `note`:
        what went wrong, in a sentence. Raises UsageError: another state than done, stopped or error; or the message was
        erased meanwhile."""
        if state not in ("done", "stopped", "error"):
            raise UsageError(f"The state of an answer is {state!r}; it must be done, stopped or error.")
        storable(stats or {})  # raises before anything is written
        with self._writing:
            if not self.finished:
                self.flush()
                self._archive.end_answer(self.message_id, state, stats or {}, note)
                with self._lock:
                    self.finished = True
        return self._archive.even_deleted(self.message_id)


class Flusher:
    """The thread that writes streaming answers, started with the first of them."""

    def __init__(self, archive: ArchivedChats) -> None:
        self._archive = archive
        self._writers: list[AnswerWriter] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False

    def begin(self, message: StoredMessage, piece: Callable[[int], bytes] | None) -> AnswerWriter:
        """A writer whose text is written twice a second from now on, until it has ended."""
        writer = AnswerWriter(self._archive, message, piece)
        with self._lock:
            self._writers.append(writer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="localspec-archive", daemon=True)
                self._thread.start()
        self._wake.set()
        return writer

    def close(self) -> None:
        """Ends what runs as stopped, and the thread."""
        for writer in self._running():
            with suppress(LocalspecError):  # it was erased, or the file is busy: the next start ends it
                writer.finish("stopped", note="localspec was closed before the answer ended.")
        self._closing = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _running(self) -> list[AnswerWriter]:
        with self._lock:
            self._writers = [writer for writer in self._writers if not writer.finished]
            return [*self._writers]

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            writers = self._running()
            if not writers and not self._closing:
                self._wake.wait()
                continue
            for writer in writers:
                with suppress(LocalspecError):  # busy; it stays pending, and the next round tries again
                    writer.flush()
            self._archive.checkpoint()
            if not self._closing:
                self._wake.wait(FLUSH_SECONDS)


def living(archive: Path | None) -> set[str]:
    """Names of all holders that live; removes what dead ones left."""
    with suppress(OSError):
        if archive is not None:
            start = f"{archive.name}.writer-"
            places = [path for path in archive.parent.iterdir() if path.name.startswith(start)]
            return {path.name.removeprefix(start) for path in places if is_held(path)}
    return set()


_TERM = re.compile(r'"([^"]*)("?)|([^\s"]+)')
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
"""Thai, Lao, Burmese, Khmer, Kana and Han."""
_OPEN, _CLOSE = "\x02", "\x03"
_MOST_TITLES = 10
_CHARACTERS_AROUND = 40
"""Characters before a match in a snippet."""
_LIVE = "message.deletion IS NULL AND chat.deletion IS NULL"


def _words(text: str) -> tuple[str, list[str], list[str]]:
    """What a query looks for: FTS5's expression, "" for no words; texts that must occur as they stand, letter case
    aside; all of it, for titles. All must occur, "quoted words" in that order; the last may be the beginning of one.

    Any text is a query, never a syntax. FTS5 knows words only, so that signs, emoji and scripts written without spaces
    are looked for as they stand.
    """
    text = re.sub(r"[\x00-\x1f]", " ", text.encode("utf-8", "replace").decode())
    words, literals, terms = [], [], []
    for found in _TERM.finditer(text):
        term = (found[1] if found[3] is None else found[3]).strip()
        if not term:
            continue
        terms.append(term)
        kinds = [unicodedata.category(character) for character in term]
        words_in_it = any(kind[0] in "LN" or kind == "Co" for kind in kinds) and not _UNSPACED.search(term)
        if not words_in_it or "#" in term or any(kind[0] == "S" for kind in kinds):  # signs matter: c++, ->, emoji
            literals.append(term)
        if words_in_it:  # that FTS5's tokenizer tells apart
            begun = found.end() == len(text) and not found[2]
            words.append('"' + term.replace('"', '""') + '"' + "*" * begun)
    return " AND ".join(words), literals, terms


def _pattern(literal: str) -> str:
    return "%" + re.sub(r"([\\%_])", r"\\\1", literal) + "%"


def _messages(sql: Callable[..., sqlite3.Cursor], match: str, literals: Sequence[str], limit: int) -> list[Hit]:
    values: dict[str, str | int] = {"match": match, "limit": limit}
    conditions = [_LIVE, "message.state <> 'streaming'"]
    for at, literal in enumerate(literals):
        conditions.append(rf"message.content LIKE :literal{at} ESCAPE '\'")
        values[f"literal{at}"] = _pattern(literal)
    if match:
        found = "message_words CROSS JOIN message ON message.id = message_words.rowid"
        conditions.append("message_words MATCH :match")
        excerpt, order = "snippet(message_words, 0, char(2), char(3), '…', 16)", "rank"
    else:
        found, excerpt, order = "message", "message.content", "message.id DESC"
    rows = sql(
        f"""SELECT message.chat, message.id, chat.title, role, {excerpt}, message.created
        FROM {found} CROSS JOIN chat ON chat.id = message.chat
        WHERE {" AND ".join(conditions)} ORDER BY {order} LIMIT :limit""",
        values,
    )
    hits = []
    for chat, message, title, role, text, created in rows:
        if match:
            snippet, marks = _marked(text)
        else:
            at = max(0, text.lower().find(literals[0].lower()) - _CHARACTERS_AROUND)
            end = at + 4 * _CHARACTERS_AROUND
            snippet = "…" * (at > 0) + re.sub(r"\s", " ", text[at:end]) + "…" * (end < len(text))
            marks = _marks(snippet, literals)
        hits.append(Hit(chat, message, title, role, snippet, marks, created))
    return hits


def _marked(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    signs, marks = re.compile(f"[{_OPEN}{_CLOSE}]"), list[tuple[int, int]]()
    for found in re.finditer(f"{_OPEN}([^{_OPEN}{_CLOSE}]+){_CLOSE}", text):
        start = len(signs.sub("", text[: found.start()]))
        marks.append((start, start + len(found[1])))
    return re.sub(r"\s", " ", signs.sub("", text)), tuple(marks)


def _marks(text: str, terms: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Where terms stand in a text, letter case aside, without overlaps."""
    pattern = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    return tuple(found.span() for found in re.finditer(pattern, text, re.IGNORECASE))


class Archive(ArchivedChats):
    """All chats. A context manager; `close` ends answers that still stream."""

    def __init__(self, path: Path | None) -> None:
        """path: the database's file; None = in memory. Faces use `open`."""
        super().__init__(path)
        self._claimed = path if self.persistent else None
        """The file beside which `_hold` says that this process writes; None = nothing else reads it."""
        self._claim: Claim | None = None
        self._claiming = threading.Lock()
        self._writer = secrets.token_hex(8)
        """The name of this process as the writer of answers."""
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
            if self._claim is not None:
                self._claim.release()
                self._claim = None

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
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

    def _hold(self) -> None:
        """Claims a file that says that the writer lives; where that cannot be done, others take it for gone."""
        with self._claiming, suppress(OSError):
            if self._claimed is not None and self._claim is None:
                self._claim = Claim(self._claimed.with_name(f"{self._claimed.name}.writer-{self._writer}"))

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
        `piece`: bytes of a token, kept so that the answer's origin can be shown without the model.
        """
        settings = asdict(sampling) if isinstance(sampling, SamplingParams) else sampling or {}
        self._hold()
        begun = self._begin(parent_id, model=model, seed=seed, sampling=settings)
        return self._flusher.begin(begun, piece)

    @writes
    def _begin(self, /, parent_id: int, **columns: Any) -> StoredMessage:
        columns |= {"state": "streaming", "writer": self._writer}
        return self.even_deleted(self._add(self._chat_of(parent_id), parent_id, "assistant", "", **columns))

    def resume_answer(self, message_id: int, *, piece: Callable[[int], bytes] | None = None) -> AnswerWriter:
        """Goes on with an answer that was stopped, after a call with a new paragraph. Raises UsageError: it is no
        answer, or is being written."""
        self._hold()
        return self._flusher.begin(self._resume(message_id), piece)

    @writes
    def _resume(self, message_id: int) -> StoredMessage:
        message = self.message(message_id)
        if message.role != "assistant" or message.state == "streaming":
            raise UsageError(f"Message {message_id} is no answer that could go on.")
        ends_in_call = message.calls and 0 < message.calls[-1].said == len(message.content)
        content = message.content + PARAGRAPH * bool(ends_in_call)
        statement = "UPDATE message SET state = 'streaming', writer = ?, note = '', content = ? WHERE id = ?"
        self._sql(statement, (self._writer, content, message_id))
        return replace(message, content=content)

    @property
    @reads
    def version(self) -> int:
        """Another number whenever another process, or another window, has written into the file."""
        return int(self._sql("PRAGMA data_version").fetchone()[0])

    def written_elsewhere(self, message: StoredMessage) -> bool:
        """Whether another process writes this answer now. One whose writer has gone is ended as stopped."""
        writer = self._writer_of(message.id) if message.state == "streaming" else None
        if writer is None or writer == self._writer:
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
        """Chats whose title has all words of a query, then messages that do, the best first; see `_words`.
        What tools were called with and what they gave is not looked in."""
        match, literals, terms = _words(query)
        if not terms or limit < 1:
            return []
        conditions = " AND ".join([r"title LIKE ? ESCAPE '\'"] * len(terms))
        rows = self._sql(
            f"SELECT id, title, created FROM chat WHERE deletion IS NULL AND {conditions} ORDER BY used DESC LIMIT ?",
            (*map(_pattern, terms), min(limit, _MOST_TITLES)),
        )
        titles = [Hit(row[0], None, row[1], "", row[1], _marks(row[1], terms), row[2]) for row in rows]
        return [*titles, *_messages(self._sql, match, literals, limit - len(titles))]

    def export(self, chat_ids: Sequence[int] | None, kind: str) -> str:
        """Chats as a text file: markdown, html or json. None = all of them.
        Raises UsageError: another kind, or a chat that is not there.
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
