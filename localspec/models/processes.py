"""Which localspec processes have models open: one small file for each model, locked until it is closed.

The lock, not the process id, says whether a process is alive: ids are used again, and the system lets go of a lock
however a process ends. (Windows has no such lock; there a file that is held open cannot be deleted.)
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from localspec import paths

if sys.platform != "win32":
    import fcntl

_held: list[IO[str]] = []  # this process's own


@dataclass(frozen=True, slots=True)
class Process:
    """A running localspec."""

    pid: int
    command: str
    """Such as "chat"."""
    target: str
    """Path of the file that is open."""
    draft: str
    """"" = none."""
    context: int
    """Tokens a slot holds; 0 = not stated."""
    started: float
    """Seconds since 1970."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started))
        return asdict(self) | {"started": stamp}


def folder() -> Path:
    """Where the run files are."""
    return paths.data_dir() / "run"


def announce(command: str, target: Path, draft: Path | None = None, context: int = 0) -> Callable[[], None]:
    """Says that this process has models open, until it ends or calls what is returned.

    A folder that cannot be written is no reason to fail.
    """
    process = Process(os.getpid(), command, str(target), str(draft or ""), context, time.time())
    try:
        folder().mkdir(parents=True, exist_ok=True)
        path = folder() / f"{process.pid}-{time.time_ns()}.json"
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - held open on purpose
    except OSError:
        return lambda: None
    if not _lock(file):  # somebody looked at it in this very moment and took it for dead
        file.close()
        return announce(command, target, draft, context)
    _held.append(file)
    with suppress(OSError):
        file.write(json.dumps(asdict(process)))
        file.flush()

    def end() -> None:
        atexit.unregister(end)
        if file in _held:
            _held.remove(file)
        with suppress(OSError):
            file.close()
            path.unlink()

    atexit.register(end)
    return end


def running() -> list[Process]:
    """Models open now, oldest first: a process that has several is listed for each. Files of dead ones are removed."""
    found = []
    for path in folder().glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            if not _alive(path):
                continue
            found.append(Process(**json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda process: process.started)


def users_of(files: set[Path]) -> list[Process]:
    """Running processes that have one of these files open."""
    real = {file.resolve() for file in files}
    return [
        process
        for process in running()
        if {Path(name).resolve() for name in (process.target, process.draft) if name} & real
    ]


def _lock(file: IO[str]) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: no other process will see this one, and trying again would not help
    return os.fstat(file.fileno()).st_nlink > 0  # else it was deleted before it could be locked


def _alive(path: Path) -> bool:
    """Whether somebody holds the file; deletes it if not."""
    if sys.platform == "win32":
        try:
            path.unlink()
        except PermissionError:
            return True
        return False
    if any(Path(file.name) == path for file in _held):
        return True
    with open(path, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        path.unlink()  # under the lock: its owner is dead
        return False
