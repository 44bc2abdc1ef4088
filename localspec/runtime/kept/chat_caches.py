"""Which chat's KV cache the slot holds; those of the others wait in files, so that none is prefilled twice.

A chat is saved when its slot goes to another chat, when the engine is closed, and in idle time, as the process may be
killed: not after every answer, but once a part of it is new. Nothing here changes a text: what comes back is what the
slot held, bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from localspec import paths
from localspec.llama.cache import saved_cache
from localspec.llama.cache.cells import common_prefix
from localspec.llama.cache.context import Context
from localspec.llama.cache.saved_cache import SavedCache
from localspec.runtime.memory import memory
from localspec.types import NO_TOKENS, Tokens

LEAST_TOKENS = 128
"""Shorter caches are computed again about as fast as they are found."""
NEW_SHARE = 8
"""In idle time a cache is written when one part in so many of it is new: a chat that grows is not written at every
turn."""


class ChatCaches:
    """Of one engine with one slot. Used on its thread; files are written on another."""

    def __init__(self, context: Context, key: bytes, folder: CacheFolder, quiet: Callable[[], float]) -> None:
        """
        Args:
            context: whose slot it is.
            key: `saved_cache.key` of the context, from when its model was loaded.
            folder: where they are kept.
            quiet: seconds until nothing has run for a while.
        """
        self._context, self._key, self._folder, self._quiet = context, key, folder, quiet
        self._chat: str | None = None
        self._on_disk: Tokens = NO_TOKENS
        """What the file of that chat holds, if this engine wrote or read it."""
        self._refused = 0
        """Tokens in the slot when it was tried last to keep them; idle time waits for more."""
        self._writer = ThreadPoolExecutor(1, "localspec-chat-cache")
        self._writing: Future[bool] | None = None

    def serve(self, chat: str | None, prompt: Tokens) -> None:
        """The slot is about to answer a prompt: the cache it holds is saved if it is another chat's, and this chat's is
        brought back if it spares more of the prompt than what is there.

        Args:
            chat: whose prompt it is; None = no chat's, its cache is not kept.
            prompt: int32[n].
        """
        if chat == self._chat:
            return
        self.save()
        self._chat, self._on_disk, self._refused = chat, NO_TOKENS, 0
        if chat is not None:
            self._bring_back(chat, prompt)

    def save(self) -> None:
        """Has the cache of the chat in the slot written, if it is not on disk yet; `close` waits for the file."""
        context, chat = self._context, self._chat
        tokens, _ = context.held(0)
        if chat is None or len(tokens) < LEAST_TOKENS or np.array_equal(tokens, self._on_disk):
            return
        self._wait()
        self._refused = len(tokens)
        if not self._folder.fits(context, len(tokens)):
            return
        try:
            saved = saved_cache.take(context)
        except MemoryError:
            return
        self._on_disk = saved.tokens
        self._writing = self._writer.submit(self._folder.write, chat, self._key, saved)

    @property
    def wait(self) -> float | None:
        """See `IdleJob.wait`."""
        writing = self._writing is not None and not self._writing.done()
        return None if writing or not self._has_grown() else self._quiet()

    def step(self) -> bool:
        """Has the cache in the slot written; see `IdleJob.step`. It is never over."""
        self.save()
        return False

    def _has_grown(self) -> bool:
        tokens, _ = self._context.held(0)
        if self._chat is None or len(tokens) < LEAST_TOKENS or len(tokens) == self._refused:
            return False
        return (len(tokens) - common_prefix(self._on_disk, tokens)) * NEW_SHARE >= len(tokens)

    def forget(self, chat: str) -> None:
        """The chat was deleted: its cache leaves the disk and does not come back."""
        self._wait()
        if chat == self._chat:
            self._chat = None
        self._folder.remove(chat)

    def move(self, context: Context, key: bytes) -> None:
        """The slot is one of another context now, and empty; arguments as above."""
        self._wait()
        self._context, self._key, self._on_disk = context, key, NO_TOKENS

    def close(self) -> None:
        """Saves what is in the slot, and waits until it is on disk."""
        self.save()
        self._writer.shutdown()

    def _bring_back(self, chat: str, prompt: Tokens) -> None:
        context = self._context
        here = context.reusable(0, prompt, len(prompt))

        def wanted(tokens: Tokens, prompt_length: int) -> bool:
            return (
                self._folder.fits(context, len(tokens))
                and saved_cache.usable(context, tokens, prompt_length, prompt) > here
            )

        self._wait()
        saved = self._folder.read(chat, self._key, wanted)
        if saved is not None and saved_cache.put(context, saved):
            self._on_disk = saved.tokens

    def _wait(self) -> None:
        """For the file that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


# Saved KV caches on disk, one file per chat, the least recently used of them leaving when they grow too large.

_ABANDONED_SECONDS = 3600.0
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
            self.used(chat)
        return saved

    def used(self, chat: str) -> None:
        """The file counts as used now."""
        with contextlib.suppress(OSError):
            os.utime(self.path(chat))

    def fits(self, context: Context, tokens: int) -> bool:
        """Whether a copy of so many tokens' cache takes at most half of the memory that is left, and the budget."""
        size = context.kv_bytes * tokens // (context.settings.n_ctx * context.settings.n_slots)
        available = memory.available_bytes()
        return size <= self.budget and (available is None or size <= available // 2)

    def write(self, chat: str, key: bytes, saved: SavedCache) -> bool:
        """Keeps the cache of a chat in place of its last one; False if there is no room for it."""
        return not self.keep(chat, key, saved)

    def keep(self, chat: str, key: bytes, saved: SavedCache) -> str:
        """As `write`; why it is not kept, in words, "" = it is."""
        size = len(saved.state) + 4 * len(saved.tokens) + 1024
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if size > self.budget or size > shutil.disk_usage(self.directory).free // 2:
                return f"its {size / 1e6:.0f} MB are more than the budget, or more than half of the free disk"
            self._make_room(size, self.path(chat))
            saved_cache.write(self.path(chat), key, saved)
        except OSError as error:
            return error.strerror or str(error)
        return ""

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
                elif path.suffix == ".tmp" and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
        room = self.budget - size - sum(length for _, length, _ in files)
        for _, length, path in sorted(files):
            if room >= 0:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                room += length
