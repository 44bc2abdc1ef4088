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
from localspec.claim import Claim, is_held
from localspec.machine import holder, taken


@dataclass(frozen=True, slots=True)
class Process:
    """A running localspec."""

    pid: int
    command: str
    target: str
    """Path of the file that is open; "" = this is a server's own file, whether it has models open or not."""
    draft: str
    """"" = none."""
    context: int
    """Tokens a slot holds; 0 = not stated."""
    started: float
    """Seconds since 1970."""
    name: str = ""
    """What a server calls its default model."""
    at: str = ""
    """A server's port, or its socket file; "" = it is none."""

    def memory(self) -> int:
        """Bytes that the process takes now that has this model open, which may be one of its own; 0 = unknown."""
        process = holder(Path(self.target), self.pid) if self.target else 0
        return taken(process)[0] if process else 0

    def as_dict(self) -> dict[str, Any]:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started))
        return asdict(self) | {"started": stamp, "memory_bytes": self.memory()}


def folder() -> Path:
    """Where the run files are."""
    return paths.data_dir() / "run"


def announce(command: str, target: Path, draft: Path | None = None, context: int = 0) -> Callable[[], None]:
    """Says that this process has models open, until it ends or calls what is returned.

    A folder that cannot be written is no reason to fail.
    """
    return _announce(Process(os.getpid(), command, str(target), str(draft or ""), context, time.time()))


def announce_server(name: str, at: str) -> None:
    """Says that this process serves, until it ends: what its default model is called, and its port or socket file."""
    _announce(Process(os.getpid(), "serve", "", "", 0, time.time(), name, at))


def _announce(process: Process) -> Callable[[], None]:
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
    """Servers that run, oldest first."""
    return [process for process in running() if process.at]


def users_of(files: set[Path]) -> list[Process]:
    """Running processes that have one of these files open."""
    real = {paths.real(file) for file in files}
    return [
        process
        for process in running()
        if {paths.real(name) for name in (process.target, process.draft) if name} & real
    ]


def _claimed(path: Path) -> Path:
    return path.with_suffix(".lock")
