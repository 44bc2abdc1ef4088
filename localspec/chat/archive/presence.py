"""Tells whether the process that was writing an answer is still there: a claimed file beside the archive."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from pathlib import Path

from localspec.claim import Claim, is_held


class Presence:
    """Held by one open archive for as long as it is open."""

    def __init__(self, archive: Path | None) -> None:
        """archive: the database's file; None = it is in memory, and has no other reader."""
        self._archive = archive
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        self.name = secrets.token_hex(8)

    def hold(self) -> None:
        """Claims the file; where that cannot be done, others take this process for gone."""
        with self._lock, suppress(OSError):
            if self._archive is not None and self._claim is None:
                self._claim = Claim(_place(self._archive, self.name))

    def release(self) -> None:
        """Lets go and removes the file."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None


def living(archive: Path) -> set[str]:
    """Names of all holders that live; removes what dead ones left."""
    start = _place(archive, "").name
    with suppress(OSError):
        places = [path for path in archive.parent.iterdir() if path.name.startswith(start)]
        return {path.name.removeprefix(start) for path in places if is_held(path)}
    return set()


def _place(archive: Path, name: str) -> Path:
    return archive.with_name(f"{archive.name}.writer-{name}")
