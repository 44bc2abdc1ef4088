"""What is installed: an SQLite index in the data folder, and which files on disk belong to it.

An entry is written in one transaction, after its files were checked, so a process killed at any moment leaves the index
as it was before or after. SQLite's write lock is the one lock: files are deleted and entries added under it. The index
has a version; a newer one is refused. Weights stay in the Hugging Face cache; only what came from elsewhere (imports,
plain URLs) lies in the data folder.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from localspec import paths, sqlite
from localspec.errors import ModelError, ModelFileError, UsageError

_BUSY_SECONDS = 60.0  # how long to wait for another process, which may be deleting files
Ownership = Literal["link", "copy", "foreign"]

_STEPS = [
    """
CREATE TABLE model (
  name TEXT PRIMARY KEY, role TEXT NOT NULL, source TEXT NOT NULL, origin TEXT NOT NULL, revision TEXT NOT NULL,
  quant TEXT NOT NULL, architecture TEXT NOT NULL, licence TEXT NOT NULL, draft TEXT NOT NULL, added REAL NOT NULL
);
CREATE TABLE file (
  model TEXT NOT NULL REFERENCES model(name) ON DELETE CASCADE ON UPDATE CASCADE, part INTEGER NOT NULL,
  path TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, changed INTEGER NOT NULL, ownership TEXT NOT NULL,
  PRIMARY KEY (model, part)
);
CREATE TABLE claim (path TEXT PRIMARY KEY);
"""
]  # see `sqlite.upgrade`
VERSION = len(_STEPS)
_COLUMNS = "name, role, source, origin, revision, quant, architecture, licence, draft, added"  # of `model`


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: Path
    bytes: int
    sha256: str  # of what was on disk when it was checked
    changed: int  # modification time then, in nanoseconds
    ownership: Ownership
    """`link`: a link that localspec made (in the Hugging Face cache, or to an imported file); `copy`: localspec's own
    bytes; `foreign`: it was there before."""

    @classmethod
    def of(cls, path: Path, sha256: str, ownership: Ownership) -> StoredFile:
        status = path.stat()
        return cls(path, status.st_size, sha256, status.st_mtime_ns, ownership)

    @property
    def fault(self) -> str:
        """What is wrong with it, by a look at the folder alone; "" = nothing."""
        try:
            status = self.path.stat()
            if (status.st_size, status.st_mtime_ns) == (self.bytes, self.changed):
                return ""
            bytes_there = f"has {status.st_size} bytes instead of {self.bytes}"
            what = bytes_there if status.st_size != self.bytes else "was changed since it was checked"
        except OSError:
            what = "is gone"
        link = self.path
        with suppress(OSError):  # an imported file is called by where it lies, not by the link to it
            link = Path(os.readlink(self.path))
        return f"{link if link.is_absolute() else self.path} {what}"


@dataclass(frozen=True, slots=True)
class Entry:
    name: str  # what a user types
    files: tuple[StoredFile, ...]  # the file, or all parts of a split model in order
    role: str = "target"  # `target`, `draft` or `head` (drafts from one target's hidden states)
    source: str = "import"  # `hub`, `url` or `import`
    origin: str = ""  # repository, address or file it came from
    revision: str = ""  # commit of the repository
    quant: str = ""
    architecture: str = ""
    licence: str = ""
    draft: str = ""  # name of the draft model that was installed with it; "" = none
    added: float = 0.0

    @property
    def path(self) -> Path:
        """What is loaded: the file, or the first part."""
        return self.files[0].path

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def fault(self) -> str:
        """Why it cannot be used; "" = nothing known."""
        return next((file.fault for file in self.files if file.fault), "")

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["files"] = [asdict(file) | {"path": str(file.path)} for file in self.files]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.added))
        return found | {"bytes": self.bytes, "path": str(self.path), "fault": self.fault, "added": stamp}


@dataclass(frozen=True, slots=True)
class Removal:
    path: Path
    bytes: int  # bytes given back
    kept: str  # why its bytes were kept; "" = they are gone


class Store:
    """The index. Each call opens and closes the database, so processes and threads need no care."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (paths.data_dir() if folder is None else folder).absolute()
        self.path = self.folder / "models.sqlite"

    @property
    def files(self) -> Path:
        return self.folder / "models"

    def entries(self) -> list[Entry]:
        """Everything installed, by name; `Entry.fault` says what cannot be used."""
        if not self.path.exists():
            return []
        with self._open() as database:
            return _read(database)

    def find(self, name: str) -> Entry | None:
        """An entry by its name, or by `user/repo[:quant]` where that is clear; else None."""
        found = self.entries()
        for entry in found:
            if entry.name == name:
                return entry
        repository, _, quant = name.partition(":")
        fits = [one for one in found if one.source == "hub" and one.origin.lower() == repository.lower()]
        if quant:
            fits = [one for one in fits if one.quant.lower() in (quant.lower(), f"ud-{quant.lower()}")]
        fits = [entry for entry in fits if entry.role != "head"] or fits  # one beside its model has a name of its own
        if len({entry.path for entry in fits}) > 1:
            names = ", ".join(entry.name for entry in fits)
            raise ModelError(f"{name!r} means several installed models: {names}.", "Name one of them.")
        return fits[0] if fits else None

    def add(self, *entries: Entry) -> list[Entry]:
        """Writes entries, all or none, and returns them as listed; one of the same name is replaced, and its files go
        unless something uses them. Raises ModelFileError: a file is no longer as it was checked."""
        listed = [replace(entry, added=entry.added or time.time()) for entry in entries]
        names = {entry.name for entry in listed}
        with self._open(write=True) as database:
            before = _read(database)
            for entry in listed:
                if entry.fault:
                    raise ModelFileError(f"{entry.name} was not installed: {entry.fault}.", "Try again.")
                if not entry.name or not entry.files:
                    raise UsageError(f"A model needs a name and a file; this is {entry.name!r}.")
                database.execute("DELETE FROM model WHERE name = ?", (entry.name,))
                row = [getattr(entry, column) for column in _COLUMNS.split(", ")]
                database.execute("INSERT INTO model VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                for part, file in enumerate(entry.files):
                    facts = (_stored(file.path), file.bytes, file.sha256, file.changed, file.ownership)
                    database.execute("INSERT INTO file VALUES (?, ?, ?, ?, ?, ?, ?)", (entry.name, part, *facts))
            # After all of them, as the new ones may use the old one's files; under the lock, as in `remove`.
            now = _read(database)
            for file in (file for entry in before if entry.name in names for file in entry.files):
                if not any(used.path == file.path for entry in now for used in entry.files):
                    database.execute("DELETE FROM claim WHERE path = ?", (_stored(file.path),))
                    _delete(file, now)
        return listed

    def claim(self, links: Sequence[Path]) -> set[Path]:
        """Which of these links are localspec's: those it claimed before, and those that do not exist yet. Called before
        they are made, so that a pull that was killed in between still owns what it made."""
        with self._open(write=True) as database:
            ours = {Path(os.fsdecode(path)) for (path,) in database.execute("SELECT path FROM claim")}
            fresh = [link for link in links if link not in ours and not os.path.lexists(link)]
            database.executemany("INSERT OR IGNORE INTO claim VALUES (?)", [(_stored(link),) for link in fresh])
            return {link for link in links if link in ours or link in fresh}

    def remove(self, name: str) -> list[Removal]:
        """Removes an entry, and those of its files that nothing else uses. Raises ModelError: no such entry."""
        with self._open(write=True) as database:
            found = _read(database)
            entry = next((entry for entry in found if entry.name == name), None)
            if entry is None:
                raise ModelError(f"{name!r} is not installed.", "localspec list shows what is.")
            others = [other for other in found if other is not entry]
            # The bytes first: on a full disk they are the room for what is written after. Still under the lock: no
            # entry can begin to use a file while it goes. Killed in between, the entry stays and is shown as broken.
            removals = [_delete(file, others) for file in entry.files]
            database.execute("DELETE FROM model WHERE name = ?", (name,))
            used = {file.path for other in others for file in other.files}
            gone = [(_stored(file.path),) for file in entry.files if file.path not in used]
            database.executemany("DELETE FROM claim WHERE path = ?", gone)
            return removals

    @contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite.connect(self.path, _BUSY_SECONDS)) as database:
                database.execute("PRAGMA foreign_keys = ON")
                sqlite.upgrade(database, _STEPS)
                version = sqlite.number(database, "user_version")
                if version > VERSION:
                    text = f"The index of models {self.path} is of version {version}; this localspec knows {VERSION}."
                    raise ModelError(text, "Use the newer localspec that wrote it.")
                with sqlite.transaction(database, "IMMEDIATE" if write else "DEFERRED"):
                    yield database
        except sqlite3.Error as error:
            away = "Move it away; the files stay, and pulling again finds them in the cache."
            hint = "Make room and try again." if "full" in str(error) else away
            raise ModelError(f"The index of models {self.path} cannot be used: {error}.", hint) from error


def _read(database: sqlite3.Connection) -> list[Entry]:
    parts: dict[str, list[StoredFile]] = {}
    columns = "model, path, bytes, sha256, changed, ownership"
    for model, path, *rest in database.execute(f"SELECT {columns} FROM file ORDER BY model, part"):
        parts.setdefault(model, []).append(StoredFile(Path(os.fsdecode(path)), *rest))
    rows = database.execute(f"SELECT {_COLUMNS} FROM model ORDER BY name")
    return [Entry(name, tuple(parts[name]), *rest) for name, *rest in rows if name in parts]


def _stored(path: Path) -> str | bytes:
    """A path as a value of SQLite, whose texts are UTF-8: the bytes of one that is not. `os.fsdecode` reads both."""
    try:
        str(path).encode()
        return str(path)
    except UnicodeEncodeError:
        return os.fsencode(path)


def _delete(file: StoredFile, others: Sequence[Entry]) -> Removal:
    """Deletes a file's link and bytes as far as they are ours and nothing else needs them."""
    path = file.path
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError:
        if path.is_symlink() and file.ownership == "link":
            path.unlink()
        return Removal(path, 0, "it was gone already")
    for other in others:
        if any(used.path == path for used in other.files):
            return Removal(path, 0, f"{other.name} uses it too")
    if file.ownership == "foreign":
        return Removal(path, 0, "it was there before localspec, so another program may use it")
    if file.ownership == "copy" or not path.is_symlink():
        removal = _unlinked(path, file.bytes)
        _remove_if_empty(path.parent)
        return removal
    path.unlink()
    is_blob = real.parent.name == "blobs" and real.parent.parent.name.startswith("models--")  # of a Hugging Face cache
    if not is_blob:
        _remove_if_empty(path.parent)
        return Removal(path, 0, f"{real} is your own file; only the link to it is gone")
    for other in others:
        if any(paths.real(used.path) == real for used in other.files):
            return Removal(path, 0, f"{other.name} uses the same bytes")
    for link in sorted((real.parent.parent / "snapshots").rglob("*")):
        if link.is_symlink() and paths.real(link) == real:
            return Removal(path, 0, f"another link in the cache points to its bytes: {link}")
    removal = _unlinked(real, file.bytes, path)
    _remove_empty(path.parent, real.parent.parent)
    return removal


def _unlinked(path: Path, size: int, shown: Path | None = None) -> Removal:
    hard_links = path.stat().st_nlink
    path.unlink()
    if hard_links > 1:
        return Removal(shown or path, 0, f"{hard_links - 1} more hard links hold its bytes")
    return Removal(shown or path, size, "")


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        os.rmdir(folder)


def _remove_empty(folder: Path, top: Path) -> None:
    """Removes what has become empty in the repository `top` of a Hugging Face cache, from `folder` in a snapshot up,
    and names of a commit whose snapshot is gone: huggingface_hub's tools call a cache damaged that still has one."""
    snapshots = top / "snapshots"
    with suppress(OSError, ValueError):
        commit = folder.relative_to(snapshots).parts[0]
        while folder != snapshots:
            os.rmdir(folder)
            folder = folder.parent
        for reference in (top / "refs").rglob("*"):
            if reference.is_file() and reference.read_text(encoding="utf-8").strip() == commit:
                reference.unlink()
        for empty in (snapshots, top / "refs", top / "blobs", top):
            _remove_if_empty(empty)
