"""A file to fetch: where it goes, what of it has come, and whether what has come is right."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.utils import WeakFileLock

from localspec import paths
from localspec.errors import Cancelled
from localspec.models.hub.hub import Hub
from localspec.models.hub.names import RemoteFile

PARTIAL = ".localspec.incomplete"
"""Ending of a file that has come in part."""

Report = Callable[[str, int, int, str], None]
"""(file, bytes done, bytes in all, "loading", "checking" or "waiting"), from several threads."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A file to fetch, and where it goes."""

    file: RemoteFile
    repository: str = ""
    """"" = not from the hub."""
    commit: str = ""
    folder: Path = Path()
    """For files that are not from the hub."""

    @property
    def where(self) -> str:
        """Repository or address, for messages."""
        return self.repository or self.file.url

    @property
    def label(self) -> str:
        """What progress calls it; two repositories may have files of one name."""
        return f"{self.repository}/{self.file.name}".lstrip("/")

    def blob(self, hub: Hub) -> Path:
        """The file's final place: its blob in the Hugging Face cache, or its own name."""
        if self.repository:
            return hub.folder(self.repository) / "blobs" / self.file.blob
        return self.folder / self.file.name.rsplit("/", 1)[-1]

    def link(self, hub: Hub) -> Path:
        """Where it is used from: the link in the cache's snapshot, or its own name."""
        if self.repository:
            return hub.folder(self.repository) / "snapshots" / self.commit / self.file.name
        return self.blob(hub)

    def partial(self, hub: Hub) -> Path:
        """What has come so far. huggingface_hub's own tools count `*.incomplete` as an interrupted download."""
        blob = self.blob(hub)
        return blob.with_name(blob.name + PARTIAL)

    def lock(self, hub: Hub) -> Path:
        """Held while its bytes come: huggingface_hub's own lock of a blob, or one for the folder."""
        return lock_of(self.partial(hub), hub.cache)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A complete, checked file."""

    path: Path
    size: int
    sha256: str


def on_disk(transfer: Transfer, hub: Hub) -> int:
    """Bytes of a transfer that need not be fetched any more."""
    for path in (transfer.blob(hub), transfer.partial(hub)):
        with suppress(OSError):
            return min(path.stat().st_size, transfer.file.size)
    return 0


def checked_sha256(path: Path, transfer: Transfer, report: Report, stop: threading.Event) -> str | None:
    """Sha256 of a file on disk, if size and checksum are as promised; else None.

    Raises:
        Cancelled: `stop` was set.
    """
    file = transfer.file
    if path.stat().st_size != file.size:
        return None
    git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)  # what git calls a file that is not in LFS
    check_git = not file.sha256 and len(file.blob) == 40

    def heard(_: str, done: int, size: int) -> None:
        if stop.is_set():
            raise Cancelled("The download was stopped.", "The next pull goes on where it was.")
        report(transfer.label, done, size, "checking")

    found = paths.sha256_of(path, heard, git.update if check_git else None)
    if check_git:
        return found if git.hexdigest() == file.blob else None
    return found if file.sha256 in ("", found) else None


def remove_partials(hub: Hub, folder: Path) -> list[tuple[Path, int]]:
    """Removes interrupted downloads of localspec's from the cache and `folder`; those going on now are left alone.

    Returns:
        (path, bytes given back) of each.
    """
    found = [*hub.cache.glob(f"models--*/blobs/*{PARTIAL}"), *folder.glob(f"*/*{PARTIAL}")]
    removed = []
    for partial in sorted(found):
        lock = lock_of(partial, hub.cache)
        with suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            with WeakFileLock(lock, timeout=0.2):
                size = partial.stat().st_size
                partial.unlink()
                removed.append((partial, size))
                if not partial.is_relative_to(hub.cache):
                    partial.parent.rmdir()  # unless something else is in it
    return removed


def lock_of(partial: Path, cache: Path) -> Path:
    """The lock of a partial file: of its blob in the Hugging Face cache, else of its folder, which has one file."""
    if partial.parent.name == "blobs" and partial.is_relative_to(cache):
        return cache / ".locks" / partial.parent.parent.name / f"{partial.name.removesuffix(PARTIAL)}.lock"
    return partial.parent.parent / ".locks" / f"{partial.parent.name}.lock"
