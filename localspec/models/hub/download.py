"""One model of a pull: its files and headers, and how the files come into the Hugging Face cache, or a folder of ours.

huggingface_hub moves the bytes and lays out its cache; what is added here: a partial file that survives any
interruption and is gone on with, a sha256 check of what is really on disk before anything is called complete, several
files at once, and a way to stop. A file appears under its final name by one rename or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
from huggingface_hub import constants, errors, hf_hub_download
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import WeakFileLock

from localspec import paths
from localspec.errors import Cancelled, DownloadError, ModelError, ModelFileError
from localspec.gguf import Header, read_header, read_header_from
from localspec.models.facts.heads import draft_kind
from localspec.models.hub import names
from localspec.models.hub.hub import Hub, Listing, passing
from localspec.models.hub.names import RemoteFile, RepositoryModel, RepositoryName, Url
from localspec.models.installed.catalog import ModelEntry
from localspec.models.installed.store import Store

PARTIAL = ".localspec.incomplete"  # ending of a file that has come in part
AT_ONCE = 4  # files fetched in parallel
_MOST_FAILURES = 3  # without a new byte
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BLOCK_BYTES = 1 << 20

constants.DOWNLOAD_CHUNK_SIZE = _BLOCK_BYTES  # a cut connection loses what is not yet written: 1 MiB instead of 10

Report = Callable[[str, int, int, str], None]  # (file, done, in all, "loading", "checking" or "waiting"), in threads


class Fetched(NamedTuple):
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Transfer:
    file: RemoteFile
    repository: str = ""  # "" = not from the hub
    commit: str = ""
    folder: Path = Path()  # for files that are not from the hub

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

    def missing(self, hub: Hub) -> int:
        for path in (self.blob(hub), self.partial(hub)):
            with suppress(OSError):
                return self.file.size - min(path.stat().st_size, self.file.size)
        return self.file.size


@dataclass(frozen=True, slots=True)
class Wish:
    """One model that is wanted, before the net was asked."""

    source: RepositoryName | Url
    role: str = "target"
    name: str = ""  # what it will be called; "" = after its source
    revision: str = ""
    sha256: str = ""  # known beforehand, as from the catalogue
    licence: str = ""


@dataclass(frozen=True, slots=True)
class PullPart:
    """One model of a pull: its files, and their headers, read by range."""

    name: str
    role: str
    origin: str  # repository or address
    choice: RepositoryModel
    headers: tuple[Header, ...]
    transfers: tuple[Transfer, ...]
    others: tuple[RepositoryModel, ...] = ()  # what else the repository has of this model
    listing: Listing | None = None
    licence: str = ""

    @property
    def header(self) -> Header:
        """Of the first file, which describes the model."""
        return self.headers[0]

    def missing(self, hub: Hub) -> int:
        return sum(transfer.missing(hub) for transfer in self.transfers)

    def as_dict(self, hub: Hub) -> dict[str, Any]:
        files = [{"file": file.name, "bytes": file.size, "sha256": file.sha256} for file in self.choice.files]
        commit = self.listing.commit if self.listing else ""
        facts = {"name": self.name, "role": self.role, "origin": self.origin, "revision": commit}
        facts |= {"quant": self.choice.quant, "architecture": self.header.architecture, "licence": self.licence}
        return {**facts, "bytes": self.choice.size, "missing_bytes": self.missing(hub), "files": files}


def wish_for(entry: ModelEntry, role: str, revision: str = "") -> Wish:
    """What a model of the catalogue asks for. Raises ModelError: it is shipped with localspec."""
    if entry.bundled:
        text = f"{entry.name!r} is shipped with localspec; there is nothing to pull."
        raise ModelError(text, "localspec run uses it.")
    source = RepositoryName(entry.repository, entry.quant, entry.file)
    role = entry.role if role == "draft" else role
    sha256 = "" if revision and revision != entry.revision else entry.sha256
    return Wish(source, role, entry.name, revision or entry.revision, sha256, entry.licence)


def part_of(wish: Wish, hub: Hub, store: Store) -> PullPart:
    """The files that a wish means, and their headers. Raises ModelError: no such file, or one that cannot be that."""
    if isinstance(wish.source, Url):
        file = hub.url_file(wish.source)
        choice = RepositoryModel(names.quant_of(file.name), (file,))
        name = file.name.removesuffix(".gguf")
        if any(entry.name == name and entry.origin != wish.source.url for entry in store.entries()):
            name = f"{name}-{file.blob[:8]}"  # many addresses end in model.gguf
        transfers = (Transfer(file, folder=store.files / file.blob),)
        return PullPart(name, wish.role, wish.source.url, choice, _headers(wish, transfers, hub), transfers)
    listing = hub.listing(wish.source.repository, wish.revision)
    choice = names.choose(wish.source, listing.files)
    if wish.sha256 and choice.files[0].sha256 not in ("", wish.sha256):
        text = f"{choice.files[0].name} of {listing.repository} is not the file the catalogue lists (another sha256)."
        way = f"pull {listing.repository}:{choice.quant} by name"
        raise ModelError(text, f"Look at {hub.endpoint}/{listing.repository} and {way}.")
    return chosen(wish, listing, choice, hub)


def chosen(wish: Wish, listing: Listing, choice: RepositoryModel, hub: Hub) -> PullPart:
    """A model of a repository, called `user/repo:QUANT` where that is clear, else by its file; raises as `part_of`."""
    transfers = tuple(Transfer(file, listing.repository, listing.commit) for file in choice.files)
    others = names.choices(listing.files)
    alone = bool(choice.quant) and [other for other in others if other.quant == choice.quant] == [choice]
    name = wish.name or listing.repository + (f":{choice.quant}" if alone else f"/{choice.files[0].name}")
    headers, rest = _headers(wish, transfers, hub), tuple(other for other in others if other != choice)
    return PullPart(name, wish.role, listing.repository, choice, headers, transfers, rest, listing, wish.licence)


def _headers(wish: Wish, transfers: Sequence[Transfer], hub: Hub) -> tuple[Header, ...]:
    """Of all files, by range, or from the disk where one lies complete; refuses what cannot be part of a pair."""
    headers = list[Header]()
    for transfer in transfers:
        file, called = transfer.file, f"{transfer.where}/{transfer.file.name}"
        local = transfer.link(hub) if hub.offline else transfer.blob(hub)
        if hub.offline or (local.is_file() and local.stat().st_size == file.size):
            try:
                headers.append(replace(read_header(local), path=Path(called)))  # not by its checksum in the cache
                continue
            except ModelFileError:
                if hub.offline:
                    raise
        headers.append(read_header_from(hub.reader(file, transfer.where), file.size, called))
    kind = draft_kind(headers[0])
    if not kind.drafts or (kind.is_head and wish.role == "target"):
        name = f"{transfers[0].file.name} of {transfers[0].where}"
        raise ModelError(f"{name} cannot be a {wish.role}: it is {kind.sentence}.")
    return tuple(headers)


def lock_of(partial: Path, cache: Path) -> Path:
    """The lock of a partial file, held while its bytes come: huggingface_hub's own of its blob in the Hugging Face
    cache, else one of its folder, which has one file."""
    if partial.parent.name == "blobs" and partial.is_relative_to(cache):
        return cache / ".locks" / partial.parent.parent.name / f"{partial.name.removesuffix(PARTIAL)}.lock"
    return partial.parent.parent / ".locks" / f"{partial.parent.name}.lock"


def remove_partials(hub: Hub, folder: Path) -> list[tuple[Path, int]]:
    """Removes interrupted downloads of ours from the cache and `folder`, no running ones; (path, bytes) of each."""
    removed = []
    for partial in sorted([*hub.cache.glob(f"models--*/blobs/*{PARTIAL}"), *folder.glob(f"*/*{PARTIAL}")]):
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


def fetch_all(
    transfers: Sequence[Transfer], hub: Hub, report: Report, stop: threading.Event | None = None
) -> list[Fetched]:
    """Fetches files in parallel; Ctrl-C or `stop` (Cancelled) leaves partial files to go on with. Raises DownloadError:
    the first failure; the other files are stopped and keep what they have."""
    stop = threading.Event() if stop is None else stop
    results: dict[int, Fetched] = {}
    failures: list[BaseException] = []
    waiting, lock = [*enumerate(transfers)], threading.Lock()

    def work() -> None:
        while not stop.is_set():
            with lock:
                if not waiting:
                    return
                index, transfer = waiting.pop(0)
            try:
                results[index] = _Fetch(transfer, hub, report, stop).run()
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
    if failures:
        raise next((error for error in failures if not isinstance(error, Cancelled)), failures[0])
    if len(results) < len(transfers):
        raise _stopped()
    return [results[index] for index in range(len(transfers))]


def _stopped() -> Cancelled:
    return Cancelled("The download was stopped.", "The next pull goes on where it was.")


class _PartialFile(io.BufferedWriter):
    """What `http_get` appends to, with progress, a limit and a stop."""

    def __init__(self, path: Path, fetch: _Fetch) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._fetch = fetch

    def write(self, data: Any) -> int:
        file = self._fetch.transfer.file
        if self._fetch.stop.is_set():
            raise _stopped()
        if self.tell() + len(data) > file.size:
            self.empty()
            text = f"{self._fetch.transfer.where} sends more than the {file.size} bytes {file.name} has."
            raise DownloadError(text, "Try again later.")
        written = super().write(data)
        self._fetch.tell(self.tell(), "loading")
        return written

    def empty(self) -> None:
        self.seek(0)  # truncate alone leaves the position where it was
        self.truncate()


@dataclass(frozen=True, slots=True)
class _Fetch:
    transfer: Transfer
    hub: Hub
    report: Report
    stop: threading.Event

    def run(self) -> Fetched:
        """Fetches and checks the file, or finds it complete. Raises DownloadError: not to be had, wrong bytes, or no
        room; says which."""
        transfer, hub, file = self.transfer, self.hub, self.transfer.file
        if hub.offline:
            return self._cached()
        if transfer.repository and file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
            return self._by_xet()
        blob, partial = transfer.blob(hub), transfer.partial(hub)
        try:
            blob.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(lock_of(partial, hub.cache)):
                sha256 = (self._checked(blob) if blob.exists() else None) or self._load(blob, partial)
            return self._linked(blob, sha256) if transfer.repository else Fetched(blob, sha256)
        except httpx.HTTPError as error:
            raise hub.explain(error, transfer.where, file.name) from error
        except OSError as error:
            text = f"{error.filename or partial} cannot be written: {error.strerror or error}."
            if error.errno not in _FULL:
                raise DownloadError(text) from error
            missing = file.size - (partial.stat().st_size if partial.exists() else 0)
            text = f"The disk of {partial.parent} is full: {missing} bytes of {file.name} are missing."
            raise DownloadError(text, "Make room and pull again: what came so far is kept.") from error

    def tell(self, done: int, doing: str) -> None:
        self.report(self.transfer.label, done, self.transfer.file.size, doing)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """Waits for another download of the file, unless stopped."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(WeakFileLock(path, timeout=0.2))
                    break
                except TimeoutError:  # filelock's own is one
                    self.tell(0, "waiting")
                if self.stop.wait(0.1):
                    raise _stopped()
            yield

    def _checked(self, path: Path) -> str | None:
        """Sha256 of a file on disk, if size and checksum are as promised; else None."""
        file = self.transfer.file
        if path.stat().st_size != file.size:
            return None
        git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)  # what git calls a file that is not in LFS
        check_git = not file.sha256 and len(file.blob) == 40

        def heard(_: str, done: int, size: int) -> None:
            if self.stop.is_set():
                raise _stopped()
            self.report(self.transfer.label, done, size, "checking")

        found = paths.sha256_of(path, heard, git.update if check_git else None)
        if check_git:
            return found if git.hexdigest() == file.blob else None
        return found if file.sha256 in ("", found) else None

    def _load(self, blob: Path, partial: Path) -> str:
        """Bytes into the partial file, checks them, renames; once more from the start if what was resumed was wrong."""
        transfer, file = self.transfer, self.transfer.file
        for again in (True, False):
            resumed = partial.exists() and partial.stat().st_size > 0
            self._append(partial)
            sha256 = self._checked(partial)
            if sha256 is not None:
                os.replace(partial, blob)
                return sha256
            partial.unlink()
            if not (resumed and again):
                break
        text = (
            f"{transfer.where} sent wrong bytes for {file.name}: their sha256 is not the promised {file.sha256[:12]}..."
        )
        raise DownloadError(text, "Nothing was kept; try again later, or report it to the repository.")

    def _append(self, partial: Path) -> None:
        transfer, file, failures = self.transfer, self.transfer.file, 0
        while True:
            with _PartialFile(partial, self) as out:
                if out.tell() > file.size:
                    out.empty()
                start = out.tell()
                if start == file.size:
                    out.flush()
                    os.fsync(out.fileno())
                    return
                headers: dict[str, Any] = self.hub.headers_for(file.url) | {"Accept-Encoding": "identity"}
                if file.version and not file.version.startswith("W/"):
                    headers["If-Range"] = file.version  # what was changed meanwhile is sent whole, and so noticed
                self.tell(start, "loading")
                try:
                    http_get(file.url, out, resume_size=start, headers=headers, expected_size=file.size)
                    continue
                except Exception as error:
                    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code == 416:
                        out.empty()
                        text = f"{transfer.where} has less than the {file.size} bytes promised for {file.name}."
                        raise DownloadError(text, "Try again later.") from error
                    # http_get's own check: fewer bytes than announced came, without an error of the connection.
                    is_short = isinstance(error, OSError) and error.errno is None and "Consistency" in str(error)
                    if not (passing(error) if isinstance(error, httpx.HTTPError) else is_short):
                        raise
                    failures = 0 if out.tell() > start else failures + 1
                    if failures >= _MOST_FAILURES:
                        raise self.hub.explain(error, transfer.where, file.name) from error
            if self.stop.wait(min(2.0**failures - 1, 8.0)):
                raise _stopped()

    def _linked(self, blob: Path, sha256: str) -> Fetched:
        """Lets huggingface_hub link the checked blob into its snapshot."""
        link, checked = self.transfer.link(self.hub), blob.stat()
        if link.is_symlink() and not link.exists():
            link.unlink()  # to a blob that is gone
        found = self._by_hub()
        if len({(one.st_ino, one.st_size, one.st_mtime_ns) for one in (found.stat(), checked)}) > 1:
            text = f"{found} is not the file that was checked: something else changed it."
            raise DownloadError(text, "Pull it again.")
        return Fetched(found, sha256)

    def _by_xet(self) -> Fetched:
        """A file too large for the hub's plain HTTP: huggingface_hub fetches it by Xet, and a new run begins anew."""
        self.tell(0, "loading")
        name = self.transfer.file.name
        try:
            found = self._by_hub()
        except ValueError as error:  # its plain HTTP has a limit, too
            raise DownloadError(f"{name} is too large for plain HTTP, and hf_xet cannot fetch it.") from error
        sha256 = self._checked(found)
        if sha256 is None:
            paths.real(found).unlink()
            raise DownloadError(f"{self.transfer.where} sent wrong bytes for {name}.", "Nothing was kept; try again.")
        return Fetched(found, sha256)

    def _by_hub(self) -> Path:
        """huggingface_hub's own download: of a blob that is there already it makes the link."""
        transfer, hub = self.transfer, self.hub
        where: dict[str, Any] = {"revision": transfer.commit, "endpoint": hub.endpoint, "cache_dir": hub.cache}
        try:
            return Path(hf_hub_download(transfer.repository, transfer.file.name, token=hub.token or False, **where))
        except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, httpx.HTTPError) as error:
            cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None
            raise hub.explain(cause or error, transfer.where, transfer.file.name) from error

    def _cached(self) -> Fetched:
        """A file that must be in the Hugging Face cache already."""
        found = self.transfer.link(self.hub)
        if not self.transfer.repository or not found.is_file():
            text = f"{self.transfer.file.name} of {self.transfer.where} is not in the cache."
            raise DownloadError(text, "Pull it without --offline.")
        sha256 = self._checked(found)
        if sha256 is None:
            text = f"{found} is damaged: its sha256 is not its name."
            raise DownloadError(text, "Pull it again without --offline.")
        return Fetched(found, sha256)
