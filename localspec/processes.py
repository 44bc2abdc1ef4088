"""Which localspec processes serve or have models open: a small file for each model or server, beside a claimed one."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.machine import holder, taken


class Claim:
    """The lock of this process on a file. The lock, not a process id, says whether a process lives: ids are used again,
    and the system lets go of a lock however a process ends. filelock may empty or remove the file, so nothing is kept
    in it."""

    def __init__(self, path: Path) -> None:
        from filelock import FileLock  # not needed before a model or an answer

        self._path = path
        self._lock = FileLock(path, timeout=1, thread_local=False)  # `is_held` has it for a moment
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
        with suppress(OSError):
            self._path.unlink()


def is_held(path: Path) -> bool:
    """Whether a living process has the file claimed; removes it if not."""
    from filelock import FileLock

    try:
        with FileLock(path, timeout=0), suppress(OSError):
            path.unlink()  # on Windows, where an open file stays, filelock removes it after it
    except OSError:
        return path.exists()
    return False


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    command: str
    target: str  # path of the file that is open; "" = this is a server's own file, whether it has models open or not
    draft: str  # "" = none
    context: int  # tokens a slot holds; 0 = not stated
    started: float  # seconds since 1970
    name: str = ""  # what a server calls its default model
    at: str = ""  # a server's port, or its socket file; "" = it is none

    def memory(self) -> int:
        """Bytes that the process takes now that has this model open, which may be one of its own; 0 = unknown."""
        process = holder(Path(self.target), self.pid) if self.target else 0
        return taken(process)[0] if process else 0

    def as_dict(self) -> dict[str, Any]:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started))
        return asdict(self) | {"started": stamp, "memory_bytes": self.memory()}


def folder() -> Path:
    return paths.data_dir() / "run"


def announce(
    command: str, target: Path | str = "", draft: Path | None = None, context: int = 0, name: str = "", at: str = ""
) -> Callable[[], None]:
    """Says that this process has models open, or serves at a port or socket file, until it ends or calls what is
    returned. A folder that cannot be written is no reason to fail."""
    process = Process(os.getpid(), command, str(target), str(draft or ""), context, time.time(), name, at)
    path = folder() / f"{process.pid}-{time.time_ns()}.json"
    try:
        folder().mkdir(parents=True, exist_ok=True)
        claim = Claim(_claimed(path))  # first: a file without a living claim is taken for a dead one's
    except OSError:
        return lambda: None
    with suppress(OSError):
        path.write_text(json.dumps(asdict(process)), encoding="utf-8")

    def end() -> None:
        atexit.unregister(end)
        with suppress(OSError):
            path.unlink(missing_ok=True)
        claim.release()

    atexit.register(end)
    return end


def running() -> list[Process]:
    """Servers, and models open now, oldest first: a process is listed for each. Files of dead ones are removed."""
    found = []
    for path in folder().glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            if is_held(_claimed(path)):
                found.append(Process(**json.loads(path.read_text(encoding="utf-8"))))
            else:
                path.unlink()
    return sorted(found, key=lambda process: process.started)


def servers() -> list[Process]:
    return [process for process in running() if process.at]


def users_of(files: set[Path]) -> list[Process]:
    real, found = {paths.real(file) for file in files}, running()
    return [one for one in found if {paths.real(name) for name in (one.target, one.draft) if name} & real]


def _claimed(path: Path) -> Path:
    return path.with_suffix(".lock")
