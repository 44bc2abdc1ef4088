"""Past answers, searched when drafting and kept on disk between runs: one corpus for each tokenizer.

Reading, sorting and writing happen on a thread of their own; while it works on the index nothing is found, and nothing
waits. What is of least use for longest makes room. Trouble with the disk is said once, in a sentence (a warning of the
logger `localspec`), and answers go on.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from localspec import paths, sqlite
from localspec.errors import LocalspecError
from localspec.gguf import Header
from localspec.models.facts.pairing import vocabulary
from localspec.native.indexes import ContextCounts, SuffixIndex
from localspec.types import Tokens

_LOG = logging.getLogger("localspec")
LEAST_TOKENS = 8  # shorter answers are not worth keeping
KEPT_SHARE = 0.75  # of the budget, after what is of least use has left
_LOOK_SECONDS = 10.0  # in idle time, between two looks for what other processes have deleted


def folder() -> Path:
    return paths.data_dir() / "corpus"


def file_of(header: Header, megabytes: float) -> CorpusFile:
    """The file of all models with this tokenizer."""
    words = vocabulary(header)
    digest = hashlib.sha256(f"{words.kind} {words.pre} {words.size} {words.merge_count}\n".encode())
    for token in words.tokens:
        digest.update(len(token).to_bytes(4, "little") + token)
    digest.update(words.merges)
    return CorpusFile(folder() / f"{digest.hexdigest()[:24]}.sqlite", int(megabytes * 1e6))


def files() -> list[CorpusFile]:
    found = {path.with_suffix(".sqlite") for kind in ("sqlite", "tokens") for path in folder().glob(f"*.{kind}")}
    return [CorpusFile(path, 0) for path in sorted(found)]


def erase(chat: str) -> None:
    """Takes a deleted chat's answers out of the files of all tokenizers. Raises LocalspecError if one of them cannot be
    written: what was there is as it was, and the others are done."""
    fault: LocalspecError | None = None
    for file in files():
        try:
            with closing(file):
                file.remove(chat)
        except LocalspecError as error:
            said = f"The answers of the chat cannot be taken out of the corpus. {error.message}"
            fault = LocalspecError(said, error.hint)
    if fault is not None:
        raise fault


class Corpus:
    """The sequences of one file in memory. `borrow`, `used` and `keep` are for the engine's thread."""

    def __init__(self, file: CorpusFile, n_vocab: int, model: str = "") -> None:
        """Begins to read; sequences with tokens beyond `n_vocab` are left out. `model`: who answers."""
        self.file = file
        self._n_vocab, self._model = n_vocab, model
        self._most = file.budget // 4
        self._index = SuffixIndex()
        self._counts = ContextCounts()  # of what this model answered
        self._lock = threading.Lock()  # of both
        self._held: OrderedDict[int, Sequence] = OrderedDict()  # by number; used last comes last
        self._numbers: dict[bytes, int] = {}
        self._tokens = 0
        self._used: set[int] = set()
        self._said = self._closed = False
        self._looked = perf_counter()
        self._thread = ThreadPoolExecutor(1, "localspec-corpus")
        self._thread.submit(self._guarded, self._load)

    # -- on the engine's thread -------------------------------------------------------------------------------------

    def borrow(self) -> tuple[SuffixIndex, ContextCounts] | None:
        """All sequences and counts, to be looked into until `give_back`; None while they are being worked on."""
        return (self._index, self._counts) if self._lock.acquire(blocking=False) else None

    def give_back(self) -> None:
        self._lock.release()

    def used(self, sequence: int) -> None:
        self._used.add(sequence)

    def keep(self, tokens: Tokens, chat: str | None = None) -> None:
        """Takes an answer, int32[n], given in a chat that may be deleted, or in none; on disk soon."""
        if len(tokens) >= LEAST_TOKENS:
            used, self._used = self._used, set()
            self._thread.submit(self._guarded, self._take, tokens.copy(), chat, used)

    def forget(self, chat: str) -> None:
        """The chat was deleted: its answers are found no more, and leave the disk; if they cannot, it warns."""
        self._thread.submit(self._guarded, self._leave, chat)

    @property
    def wait(self) -> float | None:
        return None if self._closed else max(0.0, self._looked + _LOOK_SECONDS - perf_counter())

    def step(self) -> bool:
        """Has the thread drop what another process has deleted; see `IdleJob.step`."""
        self._looked = perf_counter()
        if not self._closed:
            self._thread.submit(self._guarded, self._look)
        return self._closed

    def settle(self) -> None:
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Writes what is not on disk yet and frees the memory; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._thread.submit(self._guarded, self._write, self._used)
        self._thread.submit(self._guarded, self.file.close)
        self._thread.shutdown()
        self._index.close()
        self._counts.close()

    # -- on its own thread ------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """A fault is said once, and answers go on."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - no caller looks at what becomes of the work
            if not self._said:
                self._said = True
                said = error.message if isinstance(error, LocalspecError) else f"{self.file.path}: {error!r}"
                _LOG.warning("localspec: %s; answers go on, and some are not added to it.", said.rstrip("."))

    def _load(self) -> None:
        left, chosen = self._most, []
        for one in reversed(self.file.read()):
            if len(one.tokens) and int(one.tokens.min()) >= 0 and int(one.tokens.max()) < self._n_vocab:
                left -= len(one.tokens)
                if left < 0:
                    break
                chosen.append(one)
        chosen.reverse()
        with self._lock:
            first = self._index.add([one.tokens for one in chosen])
            for one in chosen:
                if one.model == self._model:
                    self._counts.add(one.tokens)
        for number, one in enumerate(chosen, first):
            self._hold(number, one)

    def _look(self) -> None:
        for name in self.file.gone(self._numbers):
            self._drop(self._numbers[name])

    def _hold(self, number: int, one: Sequence) -> None:
        self._held[number] = one
        self._numbers[one.name] = number
        self._tokens += len(one.tokens)

    def _take(self, tokens: Tokens, chat: str | None, used: set[int]) -> None:
        one = Sequence(name_of(tokens, chat), tokens, time.time(), self._model)
        known = self._numbers.get(one.name)
        if known is not None:
            self._write(used | {known})
            return
        with self._lock:
            number = self._index.add([tokens])
            self._counts.add(tokens)
        self._hold(number, one)
        self._write(used, one)

    def _leave(self, chat: str) -> None:
        mark = mark_of(chat)
        for name in [name for name in self._numbers if name.startswith(mark)]:
            self._drop(self._numbers[name])
        try:
            erase(chat)
        except LocalspecError as error:
            _LOG.warning("localspec: %s", error)

    def _drop(self, number: int) -> None:
        one = self._held.pop(number)
        with self._lock:
            self._index.remove(number)
            if one.model == self._model:
                self._counts.remove(one.tokens)
        del self._numbers[one.name]
        self._tokens -= len(one.tokens)

    def _write(self, used: set[int], *new: Sequence) -> None:
        there = [number for number in used if number in self._held]
        for number in there:
            self._held.move_to_end(number)
        names = [self._held[number].name for number in there]
        if self._tokens > self._most:
            while self._tokens > KEPT_SHARE * self._most and len(self._held) > 1:
                self._drop(next(iter(self._held)))
        if names or new:
            self.file.write(new, names)


# On disk: an SQLite file for each tokenizer, which several processes may use at once.
#
# It may grow to the largest budget that any writer was given, so that one with a smaller budget does not cut what
# another keeps. What is deleted is overwritten: `secure_delete`, no write-ahead log, and a file that shrinks.

_STEPS = [
    """
CREATE TABLE sequence (name BLOB PRIMARY KEY, tokens BLOB NOT NULL, used REAL NOT NULL, model TEXT);
CREATE TABLE room (bytes INTEGER NOT NULL);
INSERT INTO room VALUES (0);
"""
]  # see `sqlite.upgrade`. `model` is NULL of what was added by hand, and empty where it is not known
_BUSY_SECONDS = 5.0  # how long to wait for another process, which writes for some milliseconds


@dataclass(frozen=True, slots=True)
class Sequence:
    name: bytes  # 16 bytes; a later one of the same name takes its place
    tokens: Tokens  # int32[n]
    used: float  # when it came or was of use last, in seconds since 1970
    model: str | None = None  # who answered, "" = unknown; None = it was added by hand


def name_of(content: bytes | Tokens, chat: str | None = None) -> bytes:
    """16 bytes that stand for a content; those of one chat begin with its mark."""
    data = content if isinstance(content, bytes) else content.astype("<i4").tobytes()
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return digest if chat is None else mark_of(chat) + digest[:8]


def mark_of(chat: str) -> bytes:
    return hashlib.blake2b(chat.encode("utf-8", "surrogatepass"), digest_size=8, person=b"chat").digest()


class CorpusFile:
    """One file; on one thread at a time. All but `size` and `close` raise a LocalspecError if it cannot be used: what
    was there is as it was. A damaged one is set aside until a chat is deleted."""

    def __init__(self, path: Path, budget: int) -> None:
        """`path` may not be there yet; `budget`: bytes it may take, if no other writer was given more."""
        self.path, self.budget = path, budget
        self._old = path.with_suffix(".tokens")
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None  # of what `read` or `gone` saw last

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self) -> list[Sequence]:
        """What is there; used last comes last."""
        if not (self.path.exists() or self._old.exists()):
            return []
        with self._transaction("DEFERRED") as database:
            self._version = sqlite.number(database, "data_version")
            sound = "typeof(name) || typeof(tokens) || typeof(used) = 'blobblobreal' AND length(tokens) % 4 = 0"
            rows = database.execute(f"SELECT * FROM sequence WHERE {sound} ORDER BY used, rowid").fetchall()
        return [
            Sequence(name, np.frombuffer(tokens, "<i4").astype(np.int32, copy=False), *rest)
            for name, tokens, *rest in rows
        ]

    def gone(self, names: Collection[bytes]) -> list[bytes]:
        """Those of the names that are not there, if another process has changed the file since this was asked last."""
        if self._connection is None:
            return []
        with self._transaction("DEFERRED") as database:
            seen, self._version = self._version, sqlite.number(database, "data_version")
            if seen == self._version:
                return []
            there = {name for (name,) in database.execute("SELECT name FROM sequence")}
        return [name for name in names if name not in there]

    def write(self, new: Iterable[Sequence], used: Iterable[bytes] = ()) -> None:
        """Adds sequences, and makes room if they are too many. `used`: names of those that were of use now."""
        rows = [(one.name, one.tokens.astype("<i4").tobytes(), one.used, one.model) for one in new]
        with self._transaction() as database:
            now = time.time()
            database.executemany("UPDATE sequence SET used = ? WHERE name = ?", [(now, name) for name in used])
            database.executemany("INSERT OR REPLACE INTO sequence VALUES (?, ?, ?, ?)", rows)
            database.execute("UPDATE room SET bytes = max(bytes, ?)", (self.budget,))
            (room,) = database.execute("SELECT bytes FROM room").fetchone()
            if _bytes(database) > room:
                _cut(database, int(KEPT_SHARE * room))

    def trim(self, most: int) -> int:
        """Cuts it to so many bytes, which count from now on even if more was given; sequences that had to go."""
        if not (self.path.exists() or self._old.exists()):
            return 0
        with self._transaction() as database:
            database.execute("UPDATE room SET bytes = ?", (most,))
            return _cut(database, most)

    def remove(self, chat: str) -> None:
        with self._transaction() as database:
            database.execute("DELETE FROM sequence WHERE substr(name, 1, 8) = ?", (mark_of(chat),))
            self.drop_damaged()

    def drop_damaged(self) -> None:
        for damaged in self.path.parent.glob(f"{self.path.name}.damaged-*"):
            damaged.unlink(missing_ok=True)

    def close(self) -> None:
        connection, self._connection, self._version = self._connection, None, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        try:
            if self._connection is None:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    self._connection = self._connected()
                except sqlite3.DatabaseError as error:
                    if not sqlite.is_damage(error):
                        raise
                    aside = sqlite.set_aside(self.path)
                    _LOG.warning(
                        "localspec: The corpus %s was damaged (%s); it is kept as %s until a chat is deleted, and a "
                        "new one was begun.",
                        *(paths.shown(self.path), error, aside.name),
                    )
                    self._connection = self._connected()
            with sqlite.transaction(self._connection, kind):
                yield self._connection
        except (OSError, sqlite3.Error) as error:
            if sqlite.is_damage(error) or "readonly" in str(error):  # so it says of a file that was moved, too
                self.close()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            said = f"The corpus {paths.shown(self.path)} cannot be used: {reason}."
            raise LocalspecError(said, "Make room, or delete it: answers do without.") from error

    def _connected(self) -> sqlite3.Connection:
        sqlite.make_private(self.path)
        connection = sqlite.connect(self.path, _BUSY_SECONDS)
        try:
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.execute("PRAGMA secure_delete = 1")
            version = sqlite.number(connection, "user_version")
            if version > len(_STEPS):
                said = f"The corpus {paths.shown(self.path)} is from a newer localspec."
                raise LocalspecError(said, "Update this one.")
            if not version:
                connection.execute("PRAGMA auto_vacuum = FULL")
            if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("database disk image is malformed")
            sqlite.upgrade(connection, _STEPS)
            if self._old.exists():  # what localspec kept until version 0.2, in a file of its own format
                with sqlite.transaction(connection), suppress(FileNotFoundError):  # another process was quicker
                    data = self._old.read_bytes()
                    rows = [(name, tokens, used, "") for name, (tokens, used) in _old_sequences(data).items()]
                    connection.executemany("INSERT OR IGNORE INTO sequence VALUES (?, ?, ?, ?)", rows)
                    connection.execute("UPDATE room SET bytes = max(bytes, ?)", (len(data),))
                for left in self._old.parent.glob(f"{self._old.name}*"):
                    left.unlink(missing_ok=True)
        except BaseException:
            connection.close()
            raise
        return connection


def _bytes(database: sqlite3.Connection) -> int:
    """What the file takes once the transaction is over."""
    pages = sqlite.number(database, "page_count") - sqlite.number(database, "freelist_count")
    return pages * sqlite.number(database, "page_size")


def _cut(database: sqlite3.Connection, most: int) -> int:
    """Takes out what was of no use for longest until the rest takes `most` bytes; how many sequences that was."""
    names = database.execute("SELECT name FROM sequence ORDER BY used, rowid").fetchall()
    for count, name in enumerate(names):
        if _bytes(database) <= most:
            return count
        database.execute("DELETE FROM sequence WHERE name = ?", name)
    return len(names)


_OLD_HEAD = struct.Struct("<4sBxxxI16sdI")
"""Magic, kind (1 = a sequence, else it was of use), tokens, name, seconds since 1970, CRC-32 of all but itself. After
it the tokens as int32."""


def _old_sequences(data: bytes) -> dict[bytes, tuple[bytes, float]]:
    """By name: tokens, and when it was of use last. What is damaged is left out."""
    found: dict[bytes, tuple[bytes, float]] = {}
    at = data.find(b"\xf5lsC")
    while 0 <= at <= len(data) - _OLD_HEAD.size:
        _, kind, count, name, used, check = _OLD_HEAD.unpack_from(data, at)
        begin, end = at + _OLD_HEAD.size, at + _OLD_HEAD.size + 4 * count
        if end <= len(data) and zlib.crc32(data[begin:end], zlib.crc32(data[at : begin - 4])) == check:
            if kind == 1 or name in found:
                found[name] = (data[begin:end] if kind == 1 else found[name][0], used)
        else:
            end = at + 1
        at = data.find(b"\xf5lsC", end)
    return found
