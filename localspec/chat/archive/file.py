"""The archive's SQLite file: opened, brought up to date, and left for memory when it cannot be written.

One connection under one lock; a write is one short transaction. With a write-ahead log and `synchronous=NORMAL` a
commit waits for no disk, and a killed process loses nothing that was committed; only a checkpoint waits, and that runs
on a connection of its own, on the thread that calls `checkpoint`. Other processes may use the same file.

While the file cannot be written, each statement that changes something in memory is noted, and repeated in the file
once there is room, so that what another process has put there meanwhile stays. New ids begin far above the file's, so
that two processes that wait for room take different ones.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from localspec import sqlite
from localspec.errors import LocalspecError, UsageError

# The tables, and how older ones become them: see `sqlite.upgrade`.

APPLICATION_ID = 0x4C535043
"""Tells an archive from other SQLite files ("LSPC")."""

TABLES = ("deletion", "chat", "message", "attachment", "call", "passes", "tag", "prompt", "preset")
"""Those with rows of their own, what is pointed to first."""

_FIRST = """
CREATE TABLE deletion (id INTEGER PRIMARY KEY AUTOINCREMENT, chat INTEGER NOT NULL, message INTEGER, at REAL NOT NULL);
CREATE TABLE chat (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL, system TEXT NOT NULL,
  model TEXT NOT NULL, params TEXT NOT NULL, pinned INTEGER NOT NULL DEFAULT 0, unsent TEXT NOT NULL DEFAULT '',
  window_first INTEGER, window_summary TEXT NOT NULL DEFAULT '', chosen INTEGER, created REAL NOT NULL,
  used REAL NOT NULL, deletion INTEGER
);
CREATE TABLE message (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, chat INTEGER NOT NULL REFERENCES chat(id), parent INTEGER,
  chosen INTEGER, role TEXT NOT NULL, content TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '', state TEXT NOT NULL,
  note TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '', seed TEXT, sampling TEXT NOT NULL DEFAULT '{}',
  stats TEXT NOT NULL DEFAULT '{}', created REAL NOT NULL, updated REAL NOT NULL, writer TEXT, deletion INTEGER,
  UNIQUE (chat, key)
);
CREATE INDEX message_of_chat ON message(chat, deletion);
CREATE INDEX message_below ON message(parent);
CREATE INDEX message_written ON message(writer) WHERE writer IS NOT NULL;
CREATE TABLE attachment (
  message INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE, position INTEGER NOT NULL, name TEXT NOT NULL,
  content TEXT NOT NULL, PRIMARY KEY (message, position)
);
CREATE TABLE passes (
  message INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE, part INTEGER NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (message, part)
);
CREATE TABLE tag (
  chat INTEGER NOT NULL REFERENCES chat(id) ON DELETE CASCADE, tag TEXT NOT NULL, PRIMARY KEY (chat, tag)
) WITHOUT ROWID;
CREATE TABLE prompt (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE);
CREATE TABLE preset (name TEXT PRIMARY KEY, system TEXT NOT NULL, params TEXT NOT NULL);
CREATE VIRTUAL TABLE message_words USING fts5(
  content, content='message', content_rowid='id', tokenize='unicode61 remove_diacritics 2', prefix='1 2 3'
);
CREATE TRIGGER words_of_new AFTER INSERT ON message WHEN new.state <> 'streaming' BEGIN
  INSERT INTO message_words(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER words_go AFTER UPDATE OF content, state ON message
WHEN old.state <> 'streaming' AND (old.content IS NOT new.content OR new.state = 'streaming') BEGIN
  INSERT INTO message_words(message_words, rowid, content) VALUES ('delete', old.id, old.content);
END;
CREATE TRIGGER words_come AFTER UPDATE OF content, state ON message
WHEN new.state <> 'streaming' AND (old.content IS NOT new.content OR old.state = 'streaming') BEGIN
  INSERT INTO message_words(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER words_of_erased AFTER DELETE ON message WHEN old.state <> 'streaming' BEGIN
  INSERT INTO message_words(message_words, rowid, content) VALUES ('delete', old.id, old.content);
END;
"""

MIGRATIONS: list[str] = [f"PRAGMA application_id = {APPLICATION_ID};\n{_FIRST}"]
"""Step n turns version n into version n + 1."""

_ADDED = """CREATE TABLE IF NOT EXISTS call (
  message INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE, position INTEGER NOT NULL, id TEXT NOT NULL,
  name TEXT NOT NULL, arguments TEXT NOT NULL, result TEXT NOT NULL, round INTEGER NOT NULL, said INTEGER NOT NULL,
  thought INTEGER NOT NULL, failed INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (message, position)
)"""
"""What a version that does not know it can leave alone, so that it raises no number and 0.1 opens the file, too."""

_OWN_IDS = ("deletion", "chat", "message")
"""Tables whose ids must differ from those that another process gives."""
_GAP, _GAPS = 100, 900
"""New ids in memory are 100 to 999 above the last one, at random: numbers of chats are typed, so that they should stay
short."""
_BUSY_SECONDS = 5.0
"""How long to wait for another process's transaction."""
_LARGEST_LOG = 4 << 20
"""Bytes of write-ahead log from which on it is worked into the file."""
_OURS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.NotSupportedError)
"""What only a mistake in this program raises."""
Values: TypeAlias = "Mapping[str, Any] | tuple[Any, ...]"


def clean(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates become U+FFFD, pairs one character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: Any) -> Any:
    """A value as SQLite takes it: texts that can be held, mappings as JSON.
    Raises UsageError: something in a mapping is no plain data.
    """
    if not isinstance(value, Mapping):
        return clean(value) if isinstance(value, str) else value
    try:
        return json.dumps(dict(value), separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"These settings cannot be kept: {error}.") from None


class _Refusal(Exception):
    """A file that is not to be used, and not to be touched."""


class _Here(threading.local):
    """The connection whose transaction this thread is in."""

    connection: sqlite3.Connection | None = None


_Archive = TypeVar("_Archive", bound="ArchiveFile")
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class _Transaction:
    """Decorates methods that call `_sql`: each is one transaction, or a part of its caller's. It may run twice: the
    second time in memory.

    Such a method raises LocalspecError if another process has held the file for too long.
    """

    def __init__(self, kind: str, apart: bool = False) -> None:
        """apart: for reads that may take long: on another connection, so that nothing waits for them."""
        self.kind, self.apart = kind, apart

    def __call__(
        self, method: Callable[Concatenate[_Archive, _Given], _Result]
    ) -> Callable[Concatenate[_Archive, _Given], _Result]:
        @wraps(method)
        def run(archive: _Archive, /, *args: _Given.args, **options: _Given.kwargs) -> _Result:
            return archive._run(self, partial(method, archive, *args, **options))

        return run


reads: Final = _Transaction("DEFERRED")
reads_apart: Final = _Transaction("DEFERRED", apart=True)
writes: Final = _Transaction("IMMEDIATE")


class ArchiveFile:
    """An SQLite database that goes on in memory if its file fails. Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """Opens or creates the file, None = in memory; never raises for what is wrong with it, see `notice`."""
        self.file = path
        """Where it is, or would be."""
        self.persistent = False
        """Whether what is written lasts."""
        self.notice = ""
        """One sentence to show the user; "" = nothing is wrong. May come while it is used."""
        self.on_notice: Callable[[str], None] | None = None
        """Hears of a notice that comes later, on the thread where it happens."""
        self._lock = threading.RLock()
        self._apart_lock = threading.Lock()
        self._apart: sqlite3.Connection | None = None
        self._here = _Here()
        self._unsaved: list[tuple[str, Values]] | None = None
        """Statements that the file lacks; None = it lacks nothing, or is not to be written."""
        self._connection = self._open()

    def _sql(self, statement: str, values: Values = ()) -> sqlite3.Cursor:
        assert self._here.connection is not None
        cursor = self._here.connection.execute(statement, values)
        if self._unsaved is not None and cursor.description is None:  # it changes something
            self._unsaved.append((statement, values))
        return cursor

    def _insert(self, table: str, row: Mapping[str, Any]) -> int:
        """A new row of a table with ids of its own; its id. Columns left out have their defaults."""
        assert self._here.connection is not None
        values = {name: storable(value) for name, value in row.items()}
        added = self._here.connection.execute(_insertion(table, values), values).lastrowid
        assert added is not None
        if self._unsaved is not None:
            values["id"] = added
            self._unsaved.append((_insertion(table, values), values))
        return added

    def _run(self, way: _Transaction, method: Callable[[], _Result]) -> _Result:
        if self._here.connection is not None:
            return method()
        if way.apart and self.persistent and self.file is not None:
            with self._apart_lock:
                try:
                    if self._apart is None:
                        self._apart = _connect(self.file)
                        self._apart.execute("PRAGMA query_only = 1")
                    return self._transact(self._apart, way.kind, method)
                except _OURS:
                    raise
                except sqlite3.DatabaseError:
                    pass  # it is met again below, which knows what to do about it
        with self._lock:
            try:
                return self._transact(self._connection, way.kind, method)
            except _OURS:
                raise
            except sqlite3.DatabaseError as error:
                self._give_up(error)
                return self._transact(self._connection, way.kind, method)

    def _transact(self, connection: sqlite3.Connection, kind: str, method: Callable[[], _Result]) -> _Result:
        unsaved = self._unsaved if connection is self._connection else None
        before = len(unsaved or ())
        self._here.connection = connection
        try:
            with sqlite.transaction(connection, kind):
                return method()
        except BaseException:
            if unsaved is not None:
                del unsaved[before:]
            raise
        finally:
            self._here.connection = None

    def checkpoint(self) -> None:
        """Works the write-ahead log into the file if it has grown to `_LARGEST_LOG`; waits for the disk."""
        if not self.persistent or self.file is None:
            return
        with suppress(OSError, sqlite3.Error):
            if os.stat(f"{self.file}-wal").st_size >= _LARGEST_LOG:
                with closing(_connect(self.file)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self._close_apart()
        with self._lock:
            self._connection.close()

    def _close_apart(self) -> None:
        with self._apart_lock:
            if self._apart is not None:
                self._apart.close()
                self._apart = None

    def save_back(self) -> bool:
        """If what is written does not last: writes it into the file, if there is room by now. Whether it lasts then."""
        with self._lock:
            if self._unsaved is None or self.file is None:
                return self.persistent
            try:
                file = _open_file(self.file)
            except (_Refusal, OSError, sqlite3.Error):
                return False
            try:
                with sqlite.transaction(file):
                    self._repeat(file, self._unsaved)
            except sqlite3.Error:
                file.close()
                return False
            self._connection.close()
            self._connection, self._unsaved = file, None
            self.persistent, self.notice = True, ""
        self._close_apart()  # the file may be another one than before
        return True

    def _repeat(self, file: sqlite3.Connection, unsaved: list[tuple[str, Values]]) -> None:
        """Changes the file as memory was changed; a new one gets all there is."""
        there = dict(file.execute("SELECT id, key FROM chat").fetchall())
        if not there:
            _copy_rows(self._connection, file)
            return
        for number, key in self._connection.execute("SELECT id, key FROM chat"):
            if there.get(number, key) != key:
                raise sqlite3.IntegrityError(f"another process has given the id {number}")
        for statement, values in unsaved:
            try:
                file.execute(statement, values)
            except sqlite3.IntegrityError as error:
                if "FOREIGN KEY" not in str(error):  # else it belongs to what another process has erased meanwhile
                    raise

    def _note_changes(self, memory: sqlite3.Connection) -> sqlite3.Connection:
        """The same connection, whose changes are noted from now on."""
        self._unsaved = []
        for table in _OWN_IDS:
            gap = _GAP + secrets.randbelow(_GAPS)
            if not memory.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = ?", (gap, table)).rowcount:
                memory.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, gap))
        return memory

    def _open(self) -> sqlite3.Connection:
        if self.file is None:
            return _in_memory(None)
        try:
            connection = _open_file(self.file)
        except _Refusal as refusal:
            self.notice = f"{refusal} Chats of this session are kept in memory only."
            return _in_memory(None)
        except (OSError, sqlite3.Error) as error:
            if not sqlite.is_damage(error):
                self.notice = _sentence(self.file, error)
                return self._note_changes(_in_memory(self.file))
            try:
                aside = sqlite.set_aside(self.file)
                connection = _open_file(self.file)
            except (_Refusal, OSError, sqlite3.Error) as worse:
                self.notice = _sentence(self.file, worse)
                return _in_memory(None)
            self.notice = f"The chat archive was damaged ({error}); it is kept as {aside}, and a new one was begun."
        self.persistent = True
        return connection

    def _give_up(self, error: sqlite3.DatabaseError) -> None:
        """Moves to memory with everything that can still be read. Raises LocalspecError: the file is merely busy."""
        if not self.persistent or self.file is None:
            raise error
        if "locked" in str(error):
            raise LocalspecError(
                "The chat archive is in use by another program.", "Close that program, or try again."
            ) from None
        memory = self._note_changes(_copied(self._connection))
        self._connection.close()
        self._connection = memory
        self.persistent = False
        notice = _sentence(self.file, error)
        if sqlite.is_damage(error):
            with suppress(OSError):
                notice += f" The damaged file is kept as {sqlite.set_aside(self.file)}."
        self.notice = notice
        if self.on_notice is not None:
            self.on_notice(notice)


def _insertion(table: str, names: Iterable[str], verb: str = "INSERT") -> str:
    return f"{verb} INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


def _connect(path: Path | str) -> sqlite3.Connection:
    connection = sqlite.connect(path, _BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = 1")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA journal_size_limit = 0")  # so that the log's size says what is in it
    return connection


def _open_file(path: Path) -> sqlite3.Connection:
    """A file ready for use.

    Raises:
        _Refusal: it is not ours, or from a newer version.
        OSError, sqlite3.Error: it cannot be opened or written, or is damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    sqlite.make_private(path)
    connection = _connect(path)
    try:
        _check_version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _migrate(connection, path)
        connection.execute("BEGIN IMMEDIATE")  # says whether it can be written
        connection.execute("ROLLBACK")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and sqlite.number(connection, "application_id") != APPLICATION_ID:
        raise _Refusal(f"{path} is an SQLite file of another program, and is left alone.")
    version = sqlite.number(connection, "user_version")
    if version > len(MIGRATIONS):
        raise _Refusal(
            f"{path} was written by a newer localspec (version {version}, this one knows {len(MIGRATIONS)}), and is "
            f"left alone; update localspec to use it."
        )


def _migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    """Brings the tables up to date; a copy of what was there is made first."""
    version = sqlite.number(connection, "user_version")
    if 0 < version < len(MIGRATIONS) and path is not None:
        backup = sqlite.free_name(path, f"version-{version}-{os.getpid()}")
        try:
            connection.execute("VACUUM INTO ?", (str(backup),))
            backup.chmod(0o600)
        except BaseException:
            backup.unlink(missing_ok=True)
            raise
    sqlite.upgrade(connection, MIGRATIONS)
    connection.execute(_ADDED)


def _in_memory(source: Path | None) -> sqlite3.Connection:
    """A database in memory, with what a file that cannot be written holds."""
    if source is not None and source.exists():
        with suppress(sqlite3.Error), closing(_connect(f"{source.absolute().as_uri()}?mode=ro&immutable=1")) as found:
            _check_version(found, source)
            return _copied(found)
    memory = _connect(":memory:")
    _migrate(memory, None)
    return memory


def _copied(source: sqlite3.Connection) -> sqlite3.Connection:
    """A copy in memory; of a damaged database, every row of every table up to the first that cannot be read."""
    memory = _connect(":memory:")
    try:
        source.backup(memory)
        if memory.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
            _migrate(memory, None)
            return memory
    except sqlite3.Error:
        pass
    memory.close()
    memory = _in_memory(None)
    memory.execute("PRAGMA foreign_keys = 0")
    for table in TABLES:
        with suppress(sqlite3.Error):
            _copy_rows(source, memory, table)
    memory.execute("PRAGMA foreign_keys = 1")
    return memory


def _copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, *tables: str) -> None:
    for table in tables or TABLES:
        for row in source.execute(f"SELECT * FROM {table}"):
            target.execute(_insertion(table, row.keys(), "INSERT OR REPLACE"), dict(row))


def _sentence(path: Path, error: Exception) -> str:
    reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return f"The chat archive {path} cannot be written ({reason}); chats of this session are kept in memory only."
