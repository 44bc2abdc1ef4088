"""A file that is locked for as long as the process that made it lives.

The lock, not a process id, says whether it lives: ids are used again, and the system lets go of a lock however a
process ends. filelock may empty or remove the file, so nothing is kept in it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class Claim:
    """The lock of this process on a file."""

    def __init__(self, path: Path) -> None:
        from filelock import FileLock  # not needed before a model or an answer

        self._path = path
        self._lock = FileLock(path, timeout=1, thread_local=False)  # `is_held` has it for a moment
        self._lock.acquire()

    def release(self) -> None:
        """Lets go and removes the file."""
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
