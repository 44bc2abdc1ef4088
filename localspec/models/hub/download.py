"""Fetches files from the hub into the shared Hugging Face cache, and from other addresses into a folder of ours.

huggingface_hub moves the bytes and lays out its cache; what is added here: a partial file that survives any
interruption and is gone on with, a sha256 check of what is really on disk before anything is called complete, several
files at once, and a way to stop. A file appears under its final name by one rename or not at all.

A file to fetch: where it goes, what of it has come, and whether what has come is right.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import httpx2 as httpx
from huggingface_hub import constants, errors, hf_hub_download
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import WeakFileLock

from localspec import paths
from localspec.errors import Cancelled, DownloadError, LocalspecError
from localspec.models.hub.hub import Hub, passing
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


AT_ONCE = 4
"""Files fetched in parallel."""
_MOST_FAILURES = 3  # without a new byte
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BLOCK_BYTES = 1 << 20

constants.DOWNLOAD_CHUNK_SIZE = _BLOCK_BYTES  # a cut connection loses what is not yet written: 1 MiB instead of 10


class _Stop(Exception):
    """Somebody asked to stop."""


class _Overflow(Exception):
    """More bytes came than the file has."""


class _Sink:
    """What `http_get` writes to: the partial file, with progress, a limit and a stop."""

    def __init__(self, file: IO[bytes], limit: int, report: Callable[[int], None], stop: threading.Event) -> None:
        self._file, self._limit, self._report, self._stop = file, limit, report, stop

    def write(self, data: bytes) -> int:
        if self._stop.is_set():
            raise _Stop
        if self._file.tell() + len(data) > self._limit:
            raise _Overflow
        written = self._file.write(data)
        self._report(self._file.tell())
        return written

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)


def fetch_all(
    transfers: Sequence[Transfer], hub: Hub, report: Report, stop: threading.Event | None = None
) -> list[Fetched]:
    """Fetches files in parallel; Ctrl-C or `stop` leaves partial files to go on with.

    Raises:
        DownloadError: the first failure; the other files are stopped and keep what they have.
        Cancelled: `stop` was set.
    """
    stop = threading.Event() if stop is None else stop
    results: dict[int, Fetched] = {}
    failures: list[BaseException] = []
    waiting, lock = list(enumerate(transfers)), threading.Lock()

    def work() -> None:
        while not stop.is_set():
            with lock:
                if not waiting:
                    return
                index, transfer = waiting.pop(0)
            try:
                results[index] = fetch(transfer, hub, report, stop)
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                failures.append(error)
                stop.set()

    # Daemons: a worker stuck in a read must not keep an interrupted program from ending.
    workers = [threading.Thread(target=work, daemon=True, name="localspec-pull") for _ in range(AT_ONCE)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive():
                worker.join(0.1)
                if failures:
                    break
    except BaseException:
        stop.set()
        raise
    for worker in workers:
        worker.join(2.0)
    real = [error for error in failures if not isinstance(error, Cancelled)]
    if failures:
        raise (real or failures)[0]
    if len(results) < len(transfers):
        raise Cancelled("The download was stopped.", "The next pull goes on where it was.")
    return [results[index] for index in range(len(transfers))]


def fetch(transfer: Transfer, hub: Hub, report: Report, stop: threading.Event) -> Fetched:
    """Fetches and checks one file, or finds it complete.

    Raises:
        DownloadError: not to be had, wrong bytes, or no room; says which.
        Cancelled: `stop` was set.
    """
    file = transfer.file
    if hub.offline:
        return _cached(transfer, hub, report, stop)
    if transfer.repository and file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        return _by_xet(transfer, hub, report, stop)
    blob, partial = transfer.blob(hub), transfer.partial(hub)
    lock = transfer.lock(hub)
    try:
        blob.parent.mkdir(parents=True, exist_ok=True)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with _locked(lock, lambda: report(transfer.label, 0, file.size, "waiting"), stop):
            sha256 = checked_sha256(blob, transfer, report, stop) if blob.exists() else None
            if sha256 is None:
                sha256 = _load(transfer, hub, blob, partial, report, stop)
        if not transfer.repository:
            return Fetched(blob, file.size, sha256)
        return _linked(transfer, hub, blob, sha256)
    except (OSError, httpx.HTTPError) as error:
        if isinstance(error, httpx.HTTPError):
            raise hub.explain(error, transfer.where, file.name) from error
        raise _disk_error(error, transfer, partial) from error


def _load(transfer: Transfer, hub: Hub, blob: Path, partial: Path, report: Report, stop: threading.Event) -> str:
    """Bytes into the partial file, checks them, renames; once more from the start if what was resumed was wrong."""
    file = transfer.file
    for again in (True, False):
        resumed = partial.exists() and partial.stat().st_size > 0
        _transfer(transfer, hub, partial, report, stop)
        sha256 = checked_sha256(partial, transfer, report, stop)
        if sha256 is not None:
            os.replace(partial, blob)
            return sha256
        partial.unlink()
        if not (resumed and again):
            break
    raise DownloadError(
        f"{transfer.where} sent wrong bytes for {file.name}: their sha256 is not the promised {file.sha256[:12]}...",
        "Nothing was kept; try again later, or report it to the repository.",
    )


def _transfer(transfer: Transfer, hub: Hub, partial: Path, report: Report, stop: threading.Event) -> None:
    """Appends to the partial file until it has its full size."""
    file, failures = transfer.file, 0
    while True:
        with open(partial, "ab") as out:
            if out.tell() > file.size:
                _empty(out)
            start = out.tell()
            if start == file.size:
                out.flush()
                os.fsync(out.fileno())
                return
            try:
                _receive(transfer, hub, out, report, stop)
                continue
            except _Stop:
                raise Cancelled("The download was stopped.", "The next pull goes on where it was.") from None
            except _Overflow:
                _empty(out)
                raise DownloadError(
                    f"{transfer.where} sends more than the {file.size} bytes {file.name} has.", "Try again later."
                ) from None
            except Exception as error:
                if _is_shorter(error):
                    _empty(out)
                    raise DownloadError(
                        f"{transfer.where} has less than the {file.size} bytes promised for {file.name}.",
                        "Try again later.",
                    ) from error
                if not _worth_another_try(error):
                    raise
                failures = 0 if out.tell() > start else failures + 1
                if failures >= _MOST_FAILURES:
                    raise hub.explain(error, transfer.where, file.name) from error
        if stop.wait(min(2.0**failures - 1, 8.0)):
            raise Cancelled("The download was stopped.", "The next pull goes on where it was.")


def _receive(transfer: Transfer, hub: Hub, out: IO[bytes], report: Report, stop: threading.Event) -> None:
    file = transfer.file
    headers: dict[str, Any] = hub.headers_for(file.url) | {"Accept-Encoding": "identity"}
    if file.version and not file.version.startswith("W/"):
        headers["If-Range"] = file.version  # what was changed meanwhile is sent whole, and so noticed
    sink = _Sink(out, file.size, lambda done: report(transfer.label, done, file.size, "loading"), stop)
    report(transfer.label, out.tell(), file.size, "loading")
    http_get(file.url, cast(BinaryIO, sink), resume_size=out.tell(), headers=headers, expected_size=file.size)


def _empty(out: IO[bytes]) -> None:
    out.seek(0)  # truncate alone leaves the position where it was
    out.truncate()


def _is_shorter(error: Exception) -> bool:
    """Whether the server says that the file ends before what is asked for."""
    return isinstance(error, errors.HfHubHTTPError) and error.response.status_code == 416


def _worth_another_try(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPError):
        return passing(error)
    # http_get's own check: fewer bytes than announced came, without an error of the connection.
    return isinstance(error, OSError) and error.errno is None and "Consistency" in str(error)


def _linked(transfer: Transfer, hub: Hub, blob: Path, sha256: str) -> Fetched:
    """Lets huggingface_hub link the checked blob into its snapshot."""
    file, link, checked = transfer.file, transfer.link(hub), blob.stat()
    if link.is_symlink() and not link.exists():
        link.unlink()  # to a blob that is gone
    found = _by_hub(transfer, hub)
    linked = found.stat()
    if (linked.st_ino, linked.st_size, linked.st_mtime_ns) != (checked.st_ino, checked.st_size, checked.st_mtime_ns):
        raise DownloadError(f"{found} is not the file that was checked: something else changed it.", "Pull it again.")
    return Fetched(found, file.size, sha256)


def _by_xet(transfer: Transfer, hub: Hub, report: Report, stop: threading.Event) -> Fetched:
    """A file too large for the hub's plain HTTP: huggingface_hub fetches it by Xet, without resuming across runs."""
    report(transfer.label, 0, transfer.file.size, "loading")
    try:
        found = _by_hub(transfer, hub)
    except ValueError as error:  # its plain HTTP has a limit, too
        raise DownloadError(f"{transfer.file.name} is too large for plain HTTP, and hf_xet cannot fetch it.") from error
    sha256 = checked_sha256(found, transfer, report, stop)
    if sha256 is None:
        paths.real(found).unlink()
        raise DownloadError(
            f"{transfer.where} sent wrong bytes for {transfer.file.name}.", "Nothing was kept; try again."
        )
    return Fetched(found, transfer.file.size, sha256)


def _by_hub(transfer: Transfer, hub: Hub) -> Path:
    """huggingface_hub's own download: of a blob that is there already it makes the link."""
    try:
        where: dict[str, Any] = {"revision": transfer.commit, "endpoint": hub.endpoint, "cache_dir": hub.cache}
        return Path(hf_hub_download(transfer.repository, transfer.file.name, token=hub.token or False, **where))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, httpx.HTTPError) as error:
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None
        raise hub.explain(cause or error, transfer.where, transfer.file.name) from error


def _cached(transfer: Transfer, hub: Hub, report: Report, stop: threading.Event) -> Fetched:
    """A file that must be in the Hugging Face cache already."""
    found = transfer.link(hub)
    if not transfer.repository or not found.is_file():
        raise DownloadError(
            f"{transfer.file.name} of {transfer.where} is not in the cache.", "Pull it without --offline."
        )
    sha256 = checked_sha256(found, transfer, report, stop)
    if sha256 is None:
        raise DownloadError(f"{found} is damaged: its sha256 is not its name.", "Pull it again without --offline.")
    return Fetched(found, transfer.file.size, sha256)


class _locked:  # noqa: N801 - reads as a verb in `with`
    """huggingface_hub's lock of a blob; waits for another download of it, unless stopped."""

    def __init__(self, path: Path, waiting: Callable[[], None], stop: threading.Event) -> None:
        self._path, self._waiting, self._stop = path, waiting, stop

    def __enter__(self) -> None:
        while True:
            self._lock = WeakFileLock(self._path, timeout=0.2)
            try:
                self._lock.__enter__()
                return
            except TimeoutError:  # filelock's own is one
                self._waiting()
            if self._stop.is_set():
                raise Cancelled("The download was stopped.", "The next pull goes on where it was.")
            time.sleep(0.1)

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)


def _disk_error(error: OSError, transfer: Transfer, partial: Path) -> LocalspecError:
    if error.errno in _FULL:
        kept = partial.stat().st_size if partial.exists() else 0
        missing = f"{transfer.file.size - kept} bytes of {transfer.file.name} are missing"
        return DownloadError(
            f"The disk of {partial.parent} is full: {missing}.",
            "Make room and pull again: what came so far is kept.",
        )
    return DownloadError(f"{error.filename or partial} cannot be written: {error.strerror or error}.")
