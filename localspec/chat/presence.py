"""Tells whether the process that was writing an answer is still there: a locked file beside the archive.

The lock, not the process id, says so: the system lets go of it however a process ends. (Windows has no such lock; there
a file that is held open cannot be deleted.)
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl


class Presence:
    """Held by one open archive for as long as it is open."""

    def __init__(self, archive: Path | None) -> None:
        """archive: the database's file; None = it is in memory, and has no other reader."""
        self._archive = archive
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.name = secrets.token_hex(8)

    def hold(self) -> None:
        """Creates and locks the file; where that cannot be done, others take this process for gone."""
        with self._lock, suppress(OSError):
            if self._archive is None or self._file is not None:
                return
            self._file = open(_place(self._archive, self.name), "wb")  # noqa: SIM115 - held open on purpose
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Lets go and removes the file."""
        if self._archive is None or self._file is None:
            return
        self._file.close()
        self._file = None
        with suppress(OSError):
            os.unlink(_place(self._archive, self.name))


def living(archive: Path) -> set[str]:
    """Names of all holders that live; removes what dead ones left."""
    start = _place(archive, "").name
    with suppress(OSError):
        places = [path for path in archive.parent.iterdir() if path.name.startswith(start)]
        return {path.name.removeprefix(start) for path in places if _is_held(path)}
    return set()


def _is_held(place: Path) -> bool:
    try:
        if sys.platform != "win32":
            with open(place, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(place)
    except OSError:
        return place.exists()  # the lock is taken, or the file is held open
    return False


def _place(archive: Path, name: str) -> Path:
    return archive.with_name(f"{archive.name}.writer-{name}")
