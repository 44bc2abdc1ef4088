"""What a database in memory has that its file lacks, while that cannot be written; it is paid once there is room.

Triggers note the keys of rows that change. Only those are written, so that what another process has put into the file
meanwhile stays. New ids begin far above the file's, so that two processes that wait for room take different ones.
"""

from __future__ import annotations

import secrets
import sqlite3

from localspec.chat.archive.schema import TABLES

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

        Raises:
            sqlite3.Error: it cannot be written, or an id stands for something else there.
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
