"""Saved KV caches on disk, one file per chat, the least recently used of them leaving when they grow too large."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from localspec import paths
from localspec.llama.cache import saved_cache
from localspec.llama.cache.saved_cache import SavedCache
from localspec.types import Tokens

_ABANDONED = 3600.0
"""Seconds after which a file that is being written has lost its writer."""


class CacheFolder:
    """Files that hold conversations: only their owner can read them. Trouble with the disk is no error."""

    def __init__(self, budget: int = 0, directory: Path | None = None) -> None:
        """At most `budget` bytes in all (0 = nothing is written); `directory` None = "chats" in the cache folder."""
        self.budget = budget
        self.directory = directory or paths.cache_dir() / "chats"

    def path(self, chat: str) -> Path:
        """The file of a chat, which may not be there. Its name says nothing about the chat's."""
        return self.directory / f"{hashlib.sha256(chat.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.kv"

    def read(self, chat: str, key: bytes, wanted: Callable[[Tokens, int], bool]) -> SavedCache | None:
        """The cache of a chat, see `saved_cache.read`; it then counts as used."""
        saved = saved_cache.read(self.path(chat), key, wanted)
        if saved is not None:
            with contextlib.suppress(OSError):
                os.utime(self.path(chat))
        return saved

    def write(self, chat: str, key: bytes, saved: SavedCache) -> bool:
        """Keeps the cache of a chat in place of its last one; False if there is no room for it."""
        size = len(saved.state) + 4 * len(saved.tokens) + 1024
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if size > self.budget or size > shutil.disk_usage(self.directory).free // 2:
                return False
            self._make_room(size, self.path(chat))
            saved_cache.write(self.path(chat), key, saved)
        except OSError:
            return False
        return True

    def remove(self, chat: str) -> None:
        """Deletes the cache of a chat, if there is one."""
        with contextlib.suppress(OSError):
            self.path(chat).unlink()

    def _make_room(self, size: int, replaced: Path) -> None:
        """Deletes what was not used for longest until `size` more bytes fit, and what killed writers left."""
        files = []
        for path in self.directory.iterdir():
            with contextlib.suppress(OSError):  # another process may be doing the same
                status = path.stat()
                if path.suffix == ".kv" and path != replaced:
                    files.append((status.st_mtime, status.st_size, path))
                elif path.suffix == ".tmp" and time.time() - status.st_mtime > _ABANDONED:
                    path.unlink()
        room = self.budget - size - sum(length for _, length, _ in files)
        for _, length, path in sorted(files):
            if room >= 0:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                room += length
