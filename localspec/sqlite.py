"""What files of SQLite have in common: opened, changed in short transactions, brought up to date, set aside."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def connect(path: Path | str, busy_seconds: float) -> sqlite3.Connection:
    """For any thread, one at a time, with transactions by statements; waits `busy_seconds` for another process's."""
    uri = str(path).startswith("file:")
    return sqlite3.connect(str(path), busy_seconds, isolation_level=None, check_same_thread=False, uri=uri)


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All of what the block changes, or nothing."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk ends it by itself
            connection.execute("ROLLBACK")
        raise


def number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def upgrade(connection: sqlite3.Connection, steps: Sequence[str]) -> None:
    """Takes the steps that are missing, in one transaction; `PRAGMA user_version` counts those taken. A step is never
    changed once it was released."""
    if number(connection, "user_version") >= len(steps):
        return
    with transaction(connection):
        version = number(connection, "user_version")  # another process may have been quicker
        begun = ""
        for line in "".join(steps[version:]).splitlines():  # `executescript` commits what is open
            begun += line + "\n"
            if line.rstrip().endswith(";") and sqlite3.complete_statement(begun):
                connection.execute(begun)
                begun = ""
        connection.execute(f"PRAGMA user_version = {max(version, len(steps))}")


def make_private(path: Path) -> None:
    """Creates the file for its owner alone, or takes it from the others. SQLite gives its log the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with suppress(OSError):
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o077:
            path.chmod(0o600)


def is_damage(error: Exception) -> bool:
    """Whether it says that the file is no database any more."""
    words = ("malformed", "not a database", "corrupt", "unsupported file format")
    return isinstance(error, sqlite3.DatabaseError) and any(one in str(error) for one in words)


def free_name(path: Path, what: str) -> Path:
    """A name beside the file that nothing has yet."""
    first = f"{path.name}.{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (path.with_name(first + suffix) for suffix in ("", *(f"-{n}" for n in range(1, 1000))))
    return next(name for name in names if not name.exists())


def set_aside(path: Path) -> Path:
    aside = free_name(path, "damaged")
    os.replace(path, aside)
    for suffix in ("-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside
