"""The archive's SQLite file: opened, brought up to date, and left for memory when it cannot be written.

One connection under one lock; a write is one short transaction. With a write-ahead log and `synchronous=NORMAL` a
commit waits for no disk, and a killed process loses nothing that was committed; only a checkpoint waits, and that runs
on a connection of its own, on whatever thread calls `checkpoint`. Other processes may use the same file.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from localspec import sqlite
from localspec.errors import LocalspecError

# The archive's tables, and how older ones become them: see `sqlite.upgrade`.

APPLICATION_ID = 0x4C535043
"""Tells an archive from other SQLite files ("LSPC")."""

TABLES = ("deletion", "chat", "message", "attachment", "passes", "tag", "prompt", "preset")
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


# What a database in memory has that its file lacks, while that cannot be written; it is paid once there is room.
#
# Triggers note the keys of rows that change. Only those are written, so that what another process has put into the file
# meanwhile stays. New ids begin far above the file's, so that two processes that wait for room take different ones.

_KEYS = {"attachment": "message", "passes": "message", "tag": "chat", "prompt": "text", "preset": "name"}
"""Columns by which rows are told apart; of all other tables it is "id"."""
_OWN_IDS = ("deletion", "chat", "message")
"""Tables whose ids must differ from those that another process gives."""
_GAP, _GAPS = 100, 900
"""New ids are 100 to 999 above the last one, at random: numbers of chats are typed, so that they should stay short."""


class Arrears:
    """Of one connection to a database in memory."""

    def __init__(self, memory: sqlite3.Connection) -> None:
        """Begins to note what changes."""
        self._memory = memory
        memory.execute("CREATE TEMP TABLE IF NOT EXISTS unpaid (place TEXT, key, PRIMARY KEY (place, key))")
        for table in TABLES:
            key = _KEYS.get(table, "id")
            for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
                memory.execute(
                    f"CREATE TEMP TRIGGER unpaid_{table}_{event} AFTER {event} ON main.{table} BEGIN "
                    f"INSERT OR IGNORE INTO unpaid VALUES ('{table}', {row}.{key}); END"
                )
        for table in _OWN_IDS:
            gap = _GAP + secrets.randbelow(_GAPS)
            if not memory.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = ?", (gap, table)).rowcount:
                memory.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, gap))

    def pay(self, file: sqlite3.Connection, everything: bool) -> None:
        """Writes into the file what it lacks; inside a transaction of the file's.

        Args:
            everything: the file is new, and lacks all there is.
        """
        keys = {table: self._unpaid(table, everything) for table in TABLES}
        for table in TABLES:
            for key in keys[table]:
                self._write(file, table, key)
        for table in reversed(TABLES):
            for key in keys[table]:
                self._remove(file, table, key)

    def _unpaid(self, table: str, everything: bool) -> list[int | str]:
        column = _KEYS.get(table, "id")
        query = "SELECT key FROM unpaid WHERE place = ? ORDER BY key"
        if table == "prompt":  # in the order of the history
            query = "SELECT key FROM unpaid LEFT JOIN prompt ON text = key WHERE place = ? ORDER BY id"
        if everything:
            order = "id" if table == "prompt" else column
            query = f"SELECT {column} FROM {table} WHERE ? <> '' GROUP BY {column} ORDER BY {order}"
        return [row[0] for row in self._memory.execute(query, (table,))]

    def _rows(self, table: str, key: int | str) -> list[sqlite3.Row]:
        return self._memory.execute(f"SELECT * FROM {table} WHERE {_KEYS.get(table, 'id')} = ?", (key,)).fetchall()

    def _write(self, file: sqlite3.Connection, table: str, key: int | str) -> None:
        rows = self._rows(table, key)
        if table in _KEYS:
            file.execute(f"DELETE FROM {table} WHERE {_KEYS[table]} = ?", (key,))
        for row in rows:
            names = [name for name in row.keys() if (table, name) != ("prompt", "id")]  # noqa: SIM118 - a row is no dict
            places = ", ".join(f":{name}" for name in names)
            statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"
            if table in _OWN_IDS:
                self._check(file, table, row)
                updates = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
                statement += f" ON CONFLICT (id) DO UPDATE SET {updates}"
            file.execute(statement, {name: row[name] for name in names})

    def _remove(self, file: sqlite3.Connection, table: str, key: int | str) -> None:
        if table in _OWN_IDS and not self._rows(table, key):
            file.execute(f"DELETE FROM {table} WHERE id = ?", (key,))

    @staticmethod
    def _check(file: sqlite3.Connection, table: str, row: sqlite3.Row) -> None:
        """Raises if the file has another chat or message of this id."""
        name = "at" if table == "deletion" else "key"
        there = file.execute(f"SELECT {name} FROM {table} WHERE id = ?", (row["id"],)).fetchone()
        if there is not None and there[0] != row[name]:
            raise sqlite3.IntegrityError(f"another process has given the id {row['id']} in {table}")


_Result = TypeVar("_Result")
_BUSY_SECONDS = 5.0
"""How long to wait for another process's transaction."""
_LARGEST_LOG = 4 << 20
"""Bytes of write-ahead log from which on it is worked into the file."""
_OURS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.NotSupportedError)
"""What only a mistake in this program raises."""


class _Refusal(Exception):
    """A file that is not to be used, and not to be touched."""


class Database:
    """An SQLite database that goes on in memory if its file fails."""

    def __init__(self, path: Path | None) -> None:
        """Opens or creates the file; never raises for what is wrong with it, see `notice`.

        Args:
            path: the file; None = in memory from the start.
        """
        self.path = path
        self.persistent = False
        """Whether what is written lasts."""
        self.notice = ""
        """One sentence about what is wrong; "" = nothing is."""
        self.on_notice: Callable[[str], None] | None = None
        """Hears of what goes wrong later, on the thread it happens on."""
        self._lock = threading.RLock()
        self._apart_lock = threading.Lock()
        self._apart: sqlite3.Connection | None = None
        self._arrears: Arrears | None = None
        """What the file lacks; None = nothing, or it is not to be written."""
        self._connection = self._open()

    def write(self, change: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Runs a function in a transaction of its own. It may run twice: the second time in memory.

        Raises:
            LocalspecError: another process has held the file for too long.
        """
        with self._lock:
            try:
                return _transaction(self._connection, change)
            except _OURS:
                raise
            except sqlite3.DatabaseError as error:
                self._give_up(error)
                return _transaction(self._connection, change)

    def read(self, question: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Runs a function that changes nothing; errors as for `write`."""
        with self._lock:
            try:
                return question(self._connection)
            except _OURS:
                raise
            except sqlite3.DatabaseError as error:
                self._give_up(error)
                return question(self._connection)

    def read_apart(self, question: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """The same for what may take long: on another connection, so that nothing waits for it."""
        if not self.persistent or self.path is None:
            return self.read(question)
        with self._apart_lock:
            try:
                if self._apart is None:
                    self._apart = _connect(self.path)
                    self._apart.execute("PRAGMA query_only = 1")
                self._apart.execute("BEGIN")  # one state of the file for all that is asked
                try:
                    return question(self._apart)
                finally:
                    self._apart.execute("ROLLBACK")
            except _OURS:
                raise
            except sqlite3.DatabaseError:
                pass
        return self.read(question)  # which knows what to do about it

    def checkpoint(self) -> None:
        """Works the write-ahead log into the file if it has grown to `_LARGEST_LOG`; waits for the disk."""
        if not self.persistent or self.path is None:
            return
        with suppress(OSError, sqlite3.Error):
            if os.stat(f"{self.path}-wal").st_size >= _LARGEST_LOG:
                with closing(_connect(self.path)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Closes all connections; a second call does nothing."""
        with self._apart_lock:
            if self._apart is not None:
                self._apart.close()
                self._apart = None
        with self._lock:
            self._connection.close()

    def save_back(self) -> bool:
        """Writes what is in memory only into the file and goes on there, if that can be done by now.

        Returns:
            Whether what is written lasts.
        """
        with self._lock:
            if self._arrears is None or self.path is None:
                return self.persistent
            try:
                file = _open_file(self.path)
            except (_Refusal, OSError, sqlite3.Error):
                return False
            try:
                new = file.execute("SELECT 1 FROM chat").fetchone() is None
                _transaction(file, partial(self._arrears.pay, everything=new))
            except sqlite3.Error:
                file.close()
                return False
            self._connection.close()
            self._connection, self._arrears = file, None
            self.persistent, self.notice = True, ""
        with self._apart_lock:  # the file may be another one than before
            if self._apart is not None:
                self._apart.close()
                self._apart = None
        return True

    def _owing(self, memory: sqlite3.Connection) -> sqlite3.Connection:
        """The same connection, whose changes are noted from now on."""
        self._arrears = Arrears(memory)
        return memory

    def _say(self, notice: str) -> None:
        self.notice = notice
        if self.on_notice is not None:
            self.on_notice(notice)

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return _in_memory(None)
        try:
            connection = _open_file(self.path)
        except _Refusal as refusal:
            self.notice = f"{refusal} Chats of this session are kept in memory only."
            return _in_memory(None)
        except (OSError, sqlite3.Error) as error:
            if not sqlite.is_damage(error):
                self.notice = _sentence(self.path, error)
                return self._owing(_in_memory(self.path))
            return self._begin_anew(self.path, error)
        self.persistent = True
        return connection

    def _begin_anew(self, path: Path, error: Exception) -> sqlite3.Connection:
        """A file that cannot be read is set aside, and a new one begun."""
        try:
            aside = sqlite.set_aside(path)
            connection = _open_file(path)
        except (_Refusal, OSError, sqlite3.Error) as worse:
            self.notice = _sentence(path, worse)
            return _in_memory(None)
        self.notice = f"The chat archive was damaged ({error}); it is kept as {aside}, and a new one was begun."
        self.persistent = True
        return connection

    def _give_up(self, error: sqlite3.DatabaseError) -> None:
        """Moves to memory with everything that can still be read.

        Raises:
            LocalspecError: the file is merely busy.
        """
        if not self.persistent or self.path is None:
            raise error
        if "locked" in str(error):
            raise LocalspecError(
                "The chat archive is in use by another program.", "Close that program, or try again."
            ) from None
        memory = self._owing(_copied(self._connection))
        self._connection.close()
        self._connection = memory
        self.persistent = False
        notice = _sentence(self.path, error)
        if sqlite.is_damage(error):
            with suppress(OSError):
                notice += f" The damaged file is kept as {sqlite.set_aside(self.path)}."
        self._say(notice)


def _transaction(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], _Result]) -> _Result:
    with sqlite.transaction(connection):
        return change(connection)


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
        _back_up(connection, sqlite.free_name(path, f"version-{version}-{os.getpid()}"))
    sqlite.upgrade(connection, MIGRATIONS)


def _back_up(connection: sqlite3.Connection, backup: Path) -> None:
    """Copies a database into a new file of the owner's alone; nothing is left of a copy that fails."""
    try:
        connection.execute("VACUUM INTO ?", (str(backup),))
        backup.chmod(0o600)
    except BaseException:
        backup.unlink(missing_ok=True)
        raise


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
    """A copy in memory; of a damaged database, the rows that can still be read."""
    memory = _connect(":memory:")
    try:
        source.backup(memory)
        if memory.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
            _migrate(memory, None)
            return memory
    except sqlite3.Error:
        pass
    memory.close()
    return _salvaged(source)


def _salvaged(source: sqlite3.Connection) -> sqlite3.Connection:
    """A new database in memory with every row of every table up to the first that cannot be read."""
    memory = _in_memory(None)
    memory.execute("PRAGMA foreign_keys = 0")
    for table in TABLES:
        with suppress(sqlite3.Error):
            for row in source.execute(f"SELECT * FROM {table}"):
                names, places = ", ".join(row.keys()), ", ".join("?" * len(row))
                memory.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", tuple(row))
    memory.execute("PRAGMA foreign_keys = 1")
    return memory


def _sentence(path: Path, error: Exception) -> str:
    reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return f"The chat archive {path} cannot be written ({reason}); chats of this session are kept in memory only."
