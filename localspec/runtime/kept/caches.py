"""The KV caches of chats and of long prompts on disk: what was read once is not prefilled again, even after a restart.

What slots hold is written when a slot goes to another chat or prompt, when the engine is closed, and in idle time, as
the process may be killed: not after every answer, but once a part of it is new. Nothing here changes a text: what comes
back is what the slot held, bit for bit. Chats and prompts have their folders and budgets apart: a chat's file goes with
the chat, and a prompt's serves all prompts that begin like it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec import paths
from localspec.llama.cache import saved_cache
from localspec.llama.cache.context import Context
from localspec.llama.cache.saved_cache import SavedCache
from localspec.llama.library.batch import common_prefix
from localspec.machine import available_bytes
from localspec.types import NO_TOKENS, Tokens

LEAST_CHAT = 128  # tokens: shorter caches of chats are computed again about as fast as they are found
LEAST_TOKENS = 512  # shorter caches of prompts are not kept: they are computed again in seconds
LEAST_GAIN = 256  # tokens that a kept prompt must spare, or that a new one must hold besides those of the others
NEW_SHARE = 8
"""Before the end a cache is written when one part in so many of it is new: a chat that grows is not written at every
turn."""
_ABANDONED_SECONDS = 3600.0  # seconds after which a file that is being written has lost its writer

_LOG = logging.getLogger("localspec")


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
        with suppress(OSError):
            os.utime(self.path(chat))

    def fits(self, context: Context, tokens: int) -> bool:
        """Whether a copy of so many tokens' cache takes at most half of the memory that is left, and the budget."""
        size = context.kv_bytes * tokens // (context.settings.n_ctx * context.settings.n_slots)
        available = available_bytes()
        return size <= self.budget and (available is None or size <= available // 2)

    def keep(self, chat: str, key: bytes, saved: SavedCache) -> str:
        """Keeps the cache of a chat in place of its last one; why it is not kept, in words, "" = it is."""
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
        with suppress(OSError):
            self.path(chat).unlink()

    def _make_room(self, size: int, replaced: Path) -> None:
        """Deletes what was not used for longest until `size` more bytes fit, and what killed writers left."""
        files = []
        for path in self.directory.iterdir():
            with suppress(OSError):  # another process may be doing the same
                status = path.stat()
                if path.suffix == ".kv" and path != replaced:
                    files.append((status.st_mtime, status.st_size, path))
                elif path.suffix == ".tmp" and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
        room = self.budget - size - sum(length for _, length, _ in files)
        for _, length, path in sorted(files):
            if room >= 0:
                return
            with suppress(OSError):
                path.unlink()
                room += length


class PromptFolder(CacheFolder):
    """Files of prompts by name, of all models together."""

    def __init__(self, budget: int = 0, directory: Path | None = None) -> None:
        super().__init__(budget, directory or paths.cache_dir() / "prompts")

    def path(self, chat: str) -> Path:
        return self.directory / f"{chat}.kv"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.kv"))


class _Caches:
    """What both keep of one engine's slots. Used on its thread; files are written on another."""

    def __init__(self, context: Context, key: bytes, files: CacheFolder, quiet: Callable[[], float]) -> None:
        """`key`: `saved_cache.key` of the context, from when its model was loaded. `quiet`: seconds until nothing has
        run for a while."""
        self._context, self._key, self._files, self._quiet = context, key, files, quiet
        self._refused: dict[int, int] = {}
        """By slot, the tokens that it held when they could not be written; not tried again before there are more."""
        self._writer = ThreadPoolExecutor(1, "localspec-caches")
        self._writing: Future[Any] | None = None

    @property
    def wait(self) -> float | None:
        return None if self._busy() or self._next() is None else self._quiet()

    def step(self) -> bool:
        """Has a slot's cache written; see `IdleJob.step`. It is never over."""
        slot = self._next()
        if slot is not None:
            self._save(slot)
        return False

    def move(self, context: Context, key: bytes) -> None:
        """The slots are those of another context now, and empty."""
        self._wait()
        self._context, self._key = context, key
        self._refused.clear()

    def _next(self) -> int | None:
        """The slot whose cache is to be written next; None = there is none."""
        raise NotImplementedError

    def _save(self, slot: int) -> None:
        raise NotImplementedError

    def _taken(self, slot: int) -> SavedCache | None:
        """A copy of what a slot holds; None = there is no room."""
        tokens, _ = self._context.held(slot)
        if self._files.fits(self._context, len(tokens)):
            with suppress(MemoryError):
                return saved_cache.take(self._context, slot)
        self._refused[slot] = len(tokens)
        return None

    def _busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


class ChatCaches(_Caches):
    """Which chat's cache each slot holds, the slot that served it last; those of the others wait in files."""

    def __init__(self, context: Context, key: bytes, files: CacheFolder, quiet: Callable[[], float]) -> None:
        super().__init__(context, key, files, quiet)
        self._slots: dict[str, int] = {}  # by chat
        self._on_disk: dict[str, Tokens] = {}
        """What the files of these chats hold, if this engine wrote or read them."""

    def serve(self, slot: int, chat: str | None, prompt: Tokens) -> None:
        """A slot, nobody else's until the answer ends, is about to answer a prompt: the cache it holds is saved if it
        is another chat's, and this chat's is brought back if it spares more of the prompt than what is there. `chat`
        None = its cache is not kept."""
        if chat is not None and self.slot(chat) == slot:
            return
        for other in [one for one, its in self._slots.items() if one == chat or its == slot]:
            self._leave(other)
        self._refused.pop(slot, None)
        if chat is not None:
            self._slots[chat] = slot
            self._bring_back(slot, chat, prompt)

    def slot(self, chat: str | None) -> int | None:
        return None if chat is None else self._slots.get(chat)

    def forget(self, chat: str) -> None:
        """The chat was deleted: its cache leaves the disk and does not come back."""
        self._wait()
        self._slots.pop(chat, None)
        self._on_disk.pop(chat, None)
        self._files.remove(chat)

    def move(self, context: Context, key: bytes) -> None:
        super().move(context, key)
        self._on_disk.clear()

    def close(self) -> None:
        """Saves what is in the slots, and waits until it is on disk."""
        for chat in [*self._slots]:
            self._leave(chat)
        self._writer.shutdown()

    def _leave(self, chat: str) -> None:
        self._save(self._slots[chat])
        del self._slots[chat]
        self._on_disk.pop(chat, None)

    def _next(self) -> int | None:
        for chat, slot in self._slots.items():
            tokens, _ = self._context.held(slot)
            if len(tokens) >= LEAST_CHAT and len(tokens) != self._refused.get(slot):
                new = len(tokens) - common_prefix(self._on_disk.get(chat, NO_TOKENS), tokens)
                if new * NEW_SHARE >= len(tokens):
                    return slot
        return None

    def _save(self, slot: int) -> None:
        tokens, _ = self._context.held(slot)
        chat = next(one for one, its in self._slots.items() if its == slot)
        if len(tokens) < LEAST_CHAT or np.array_equal(tokens, self._on_disk.get(chat, NO_TOKENS)):
            return
        self._wait()
        saved = self._taken(slot)
        if saved is not None:
            self._on_disk[chat] = saved.tokens
            self._writing = self._writer.submit(self._files.keep, chat, self._key, saved)

    def _bring_back(self, slot: int, chat: str, prompt: Tokens) -> None:
        context = self._context
        here = context.reusable(slot, prompt, len(prompt))

        def wanted(tokens: Tokens, prompt_length: int) -> bool:
            return (
                self._files.fits(context, len(tokens))
                and saved_cache.usable(context, tokens, prompt_length, prompt) > here
            )

        self._wait()
        saved = self._files.read(chat, self._key, wanted)
        if saved is not None and saved_cache.put(context, saved, slot):
            self._on_disk[chat] = saved.tokens


@dataclass(frozen=True, slots=True)
class _Kept:
    name: str
    tokens: Tokens
    prompt_length: int

    def adds(self, tokens: Tokens) -> int:
        """Number of its tokens that a cache of these tokens does not hold."""
        return len(self.tokens) - common_prefix(self.tokens, tokens)


class PromptCaches(_Caches):
    """A prompt that begins like a kept one gets that cache, if it spares more than what the slots hold."""

    _files: PromptFolder

    def __init__(self, context: Context, key: bytes, files: PromptFolder, quiet: Callable[[], float]) -> None:
        super().__init__(context, key, files, quiet)
        self._known: dict[str, _Kept | None] = {}  # files that were looked at, by name; None = not for this context
        self._coming = ""  # name of the file that is being written, or was written last
        self._warned = False
        try:
            status = context.model.path.stat()
            age = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:  # it was deleted after it was loaded
            age = ""
        facts = f"{paths.real(context.model.path)} {age}"
        self._model = hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        """What the names of the model's files begin with."""
        self._look()

    def serve(self, slot: int, prompt: Tokens) -> None:
        """The slot is about to answer a prompt: what it loses is written, and a kept cache is brought back if it spares
        more of the prompt than what is in memory."""
        context = self._context
        held, _ = context.held(slot)
        here = context.reusable(slot, prompt, len(prompt))
        if len(held) - here >= LEAST_TOKENS and self._new(slot) * NEW_SHARE >= len(held):
            self._save(slot)
        if len(prompt) < LEAST_TOKENS:
            return
        self._look()
        usable = saved_cache.usable
        kept = [(usable(context, one.tokens, one.prompt_length, prompt), one.name) for one in self._own()]
        spared, name = max(kept, default=(0, ""))
        if spared < LEAST_TOKENS:
            return
        self._files.used(name)
        if spared - max(here, self._beside(slot, prompt)) >= LEAST_GAIN:
            self._bring_back(slot, name, prompt)

    def move(self, context: Context, key: bytes) -> None:
        super().move(context, key)
        self._known.clear()

    def close(self) -> None:
        for slot in range(self._context.settings.n_slots):
            self._wait()
            if self._new(slot) >= LEAST_GAIN:
                self._save(slot)
        self._writer.shutdown()

    def _own(self) -> list[_Kept]:
        return [kept for kept in self._known.values() if kept is not None]

    def _look(self) -> None:
        names = self._files.names()
        coming = self._coming if self._busy() else ""
        self._known = {name: kept for name, kept in self._known.items() if name in names or name == coming}
        others = 0
        for name in names:
            found = None if name in self._known else self._front(name)
            if found is not None:
                own = found.name == self._key
                self._known[name] = _Kept(name, found.tokens, found.prompt_length) if own else None
                others += not own and name.startswith(self._model)
        if others:
            what = "1 kept prompt" if others == 1 else f"{others} kept prompts"
            file = self._context.model.path.name
            _LOG.warning("Not used: %s of %s from another build or with other settings.", what, file)

    def _front(self, name: str) -> saved_cache.Front | None:
        """What a file says; None = it cannot be read, or it is damaged: then it is deleted."""
        try:
            found = saved_cache.front(self._files.path(name))
        except OSError:
            return None
        if found is None:
            self._damaged(name)
        return found

    def _damaged(self, name: str) -> None:
        _LOG.warning("A kept prompt is damaged; %s was deleted.", paths.shown(self._files.path(name)))
        self._files.remove(name)
        self._known.pop(name, None)

    def _beside(self, slot: int, prompt: Tokens) -> int:
        """Leading tokens of a prompt that another slot's cache can give to this one."""
        context = self._context
        if not context.copies:
            return 0
        others = (other for other in range(context.settings.n_slots) if other != slot)
        return max((context.reusable(other, prompt, len(prompt)) for other in others), default=0)

    def _new(self, slot: int) -> int:
        """Tokens of a slot's cache that no file holds; 0 if it is too short to be kept."""
        context = self._context
        tokens, _ = context.held(slot)
        if len(tokens) < LEAST_TOKENS or self._refused.get(slot) == len(tokens):
            return 0
        whole = [kept for kept in self._own() if context.can_trim or len(kept.tokens) <= len(tokens)]
        return len(tokens) - max((common_prefix(kept.tokens, tokens) for kept in whole), default=0)

    def _next(self) -> int | None:
        for slot in range(self._context.settings.n_slots):
            new = self._new(slot)
            if new >= LEAST_GAIN and new * NEW_SHARE >= len(self._context.held(slot)[0]):
                return slot
        return None

    def _save(self, slot: int) -> None:
        if self._busy():
            return
        saved = self._taken(slot)
        if saved is None:
            return
        name = f"{self._model}-{hashlib.sha256(self._key + saved.tokens.tobytes()).hexdigest()[:32]}"
        replaced = [one.name for one in self._own() if self._context.can_trim and one.adds(saved.tokens) < LEAST_GAIN]
        self._coming, self._known[name] = name, _Kept(name, saved.tokens, saved.prompt_length)
        self._writing = self._writer.submit(self._write, name, saved, replaced)

    def _write(self, name: str, saved: SavedCache, replaced: list[str]) -> None:
        """On the writer's thread."""
        why = self._files.keep(name, self._key, saved)
        if why:
            if not self._warned:
                _LOG.warning("A prompt of %d tokens could not be kept on disk: %s.", len(saved.tokens), why)
            self._warned = True
            return
        for one in replaced:
            if one != name:
                self._files.remove(one)

    def _bring_back(self, slot: int, name: str, prompt: Tokens) -> None:
        """Puts a kept cache into a slot, if there is memory for it."""
        context = self._context
        self._wait()
        asked: list[bool] = []

        def wanted(tokens: Tokens, prompt_length: int) -> bool:
            asked.append(self._files.fits(context, len(tokens)))
            return asked[-1]

        saved = self._files.read(name, self._key, wanted)
        if saved is not None:
            saved_cache.put(context, saved, slot)
        elif asked != [False] and self._files.path(name).exists():
            self._damaged(name)


def default_budget() -> int:
    """Bytes for kept prompts unless told otherwise: 4 GB, or an eighth of the free disk."""
    return min(4 * 10**9, paths.free_bytes(paths.cache_dir()) // 8)
