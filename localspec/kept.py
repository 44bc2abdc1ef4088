"""What is kept on disk between runs: the store of small facts, and a table of all there is.

A fact is one JSON file, named by its kind and by the hash of what it is about. What cannot be read, or was written by
something else, is as if it were not there: a line of the log says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from localspec import paths
from localspec.errors import LocalspecError

T = TypeVar("T")

_LOG = logging.getLogger("localspec")
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, LocalspecError)
"""Exceptions of reading a file that localspec did not write."""
_DAY_SECONDS = 86_400
_SEASON, _YEAR = 90, 365  # days without use after which is deleted what is measured aside, and what takes minutes

KINDS: Final[dict[str, tuple[str, int | None]]] = {
    "limits": ("what this CPU can do at most", _SEASON),
    "kernels": ("whether our kernels passed their check", _SEASON),
    "widths": ("exact widths that `--exact strict` found", _YEAR),
    "acceptance": ("how often drafters of a pair are right", _SEASON),
    "costs": ("what passes and drafts of a pair cost", _SEASON),
    "passes": ("what passes took, by where they ran", _SEASON),
    "layers": ("how many layers go to a GPU, and why one failed", _YEAR),
    "serves": ("whether an integrated GPU serves", _YEAR),
    "tuning": ("settings that `localspec tune` found", None),
    "tools": ("tools that may be called unasked, servers of folders that may start", None),
}
"""{kind of facts: what it is, days without use after which the store deletes it; None = the user does}. A format that
changes is a new kind."""


@dataclass(frozen=True, slots=True)
class KeptFiles:
    files: str  # pattern below one of the folders data, cache and config
    what: str
    format: str
    limit: str  # most bytes; "" = none
    deleted: str  # by whom

    def size(self) -> tuple[Path, int]:
        """Where, and the bytes that are there now; links count nothing."""
        root, _, pattern = self.files.partition("/")
        folder = {"data": paths.data_dir, "cache": paths.cache_dir, "config": paths.config_dir}[root]()
        total, found = 0, folder.glob(pattern) if os.path.isdir(folder) else ()  # `Path.glob` may raise
        for one in [below for top in found for below in (top, *top.rglob("*"))]:
            with suppress(OSError):
                status = one.lstat()
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
        return folder / pattern, total


_UNUSED, _BY_USER = "localspec, {} days after its last use", {"tuning": "`localspec tune --forget`", "tools": "/tools"}
PLACES: Final = (
    KeptFiles("data/chats.sqlite3*", "chats, and copies made before an update", "SQLite", "", "`localspec chats rm`"),
    KeptFiles("data/tabs.json", "which chats have a tab", "JSON", "", "you"),
    KeptFiles("data/corpus", "past answers as tokens", "SQLite", "16 MB a tokenizer", "`localspec corpus`, `chats rm`"),
    KeptFiles("data/models*", "the list of models; models that were imported", "SQLite, GGUF", "", "`localspec rm`"),
    KeptFiles("data/training", "trained draft models, and what they learned from", "GGUF, JSON", "", "`localspec rm`"),
    KeptFiles("data/run", "which processes run", "JSON", "", "each process its own"),
    KeptFiles("data/copied.txt", "the last text copied, if no clipboard could be used", "text", "", "you"),
    KeptFiles("data/errors.log", "unexpected errors of the chat", "text", "", "you"),
    KeptFiles("cache/chats", "KV caches of chats", "llama.cpp's", "4 GB", "least recently used; with its chat"),
    KeptFiles("cache/prompts", "KV caches of prompts of `serve`", "llama.cpp's", "4 GB", "least recently used"),
    KeptFiles("cache/padded", "models of `packaging/bench/make_pair.py`", "GGUF", "", "you"),
    KeptFiles("config/*.json", "settings of the chat, the chosen model", "JSON", "", "you"),
    KeptFiles("config/*.toml", "keys of the chat, your catalogue", "TOML", "", "you"),
    KeptFiles("data/mcp-*.log", "what servers of tools write to standard error", "text", "1 MB a server", "you"),
    *(
        KeptFiles(f"data/facts/{name}-*", what, "JSON", "some KB each", _BY_USER.get(name) or _UNUSED.format(days))
        for name, (what, days) in KINDS.items()
    ),
)


class FactStore:
    """A folder of facts. Nothing here raises: what cannot be kept is found out again."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` None = nothing is kept."""
        self._folder = folder

    def read(self, kind: str, key: Any, made: Callable[[Any], T]) -> T | None:
        """A fact of one of `KINDS`, which then counts as used; None = there is none. `key`: what it is about, as plain
        data; `made` makes the fact of what `write` was given, and may raise anything of a foreign file."""
        if self._folder is None:
            return None
        path = _path(self._folder, kind, key)
        try:
            found = made(json.loads(path.read_bytes()))
        except OSError:
            return None
        except _DAMAGE as error:
            _LOG.warning("%s is left out, localspec cannot use it: %s", path, error)
            return None
        with suppress(OSError):
            os.utime(path)
        return found

    def write(self, kind: str, key: Any, content: Any) -> str:
        """Keeps a fact, plain data, whole or not at all; why it could not be kept, "" = it was."""
        if self._folder is None:
            return "nothing is kept"
        try:
            paths.write_whole(_path(self._folder, kind, key), json.dumps(content))
        except OSError as error:
            return f"{self._folder}: {error.strerror or error}"
        with suppress(OSError):  # what was not used for long goes; of kinds of other versions, too
            for path in self._folder.iterdir():
                _, days = KINDS.get(path.name.lstrip(".").partition("-")[0], ("", _YEAR))
                if days is not None and path.stat().st_mtime < time.time() - days * _DAY_SECONDS:
                    path.unlink()
        return ""

    def remove(self, kind: str, key: Any) -> bool:
        with suppress(OSError):
            if self._folder is not None:
                _path(self._folder, kind, key).unlink()
                return True
        return False


NOWHERE: Final = FactStore(None)


def facts() -> FactStore:
    """Those in the data folder."""
    data, cache = paths.data_dir(), paths.cache_dir()
    folder = data / "facts"
    earlier = [cache / "machine", cache / "plans", data / "layers", data / "tuning"]
    earlier = [one for one in earlier if os.path.isdir(one)]  # `Path.is_dir` may raise
    if earlier and _took_over(folder, earlier):
        for one in earlier:
            shutil.rmtree(one, ignore_errors=True)
    return FactStore(folder)


def _path(folder: Path, kind: str, key: Any) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{kind}-{digest[:32]}.json"


def _took_over(folder: Path, earlier: Iterable[Path]) -> bool:
    """Brings what version 0.2 took minutes to find, widths of `strict` and what `tune` found, once; False = the disk is
    full or read-only. Its other facts are measured again."""
    for path in [path for one in earlier for path in one.glob("*.json")]:
        try:
            data = json.loads(path.read_bytes())
            if path.parent.name == "tuning":
                files = [[size, changed] for _, size, changed in data["files"]]
                fact, content = _path(folder, "tuning", [files, data["machine"]]), data["tuning"]
            else:  # of the same name, by what it is about
                fact, content = folder / f"widths-{path.name}", {"exact": data["exact"]}
        except (OSError, *_DAMAGE):
            continue
        try:
            if not fact.exists():
                paths.write_whole(fact, json.dumps(content))
        except OSError:
            return False
    return True
