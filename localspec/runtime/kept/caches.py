"""The KV caches of chats and of long prompts on disk: what was read once is not prefilled again, even after a restart.

What slots hold is written when a slot goes to another chat or prompt, when the engine is closed, and in idle time, as
the process may be killed: not after every answer, but once a part of it is new. Nothing here changes a text: what comes
back is what the slot held, bit for bit. Chats and prompts have their folders and budgets apart: a chat's file goes with
the chat, and a prompt's serves all prompts that begin like it.

A file is taken only if everything that can change the bits of the cache is as it was when it was written, and if its
checksums are right: llama.cpp never sees a byte that it did not write itself. What came back is then treated like what
the slot had computed: how much of it a history may keep is decided by `Cells`, as ever.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import struct
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from localspec import paths
from localspec.llama.cache.context import Context
from localspec.llama.exact.wide import kernels_id, shared_facts
from localspec.llama.library import lib
from localspec.llama.library.batch import Cells, common_prefix
from localspec.machine import available_bytes
from localspec.types import NO_TOKENS, Tokens

_MAGIC = b"lspcKV01"
_HEAD = struct.Struct("<8s32sIIQ32s")
"""Magic and version, key, prompt length, tokens, bytes of state, SHA-256 of the state. After it the tokens as int32,
SHA-256 of all that, and the state as `Context.save` made it."""
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class SavedCache:
    """What one slot held."""

    tokens: Tokens  # int32[n], in position order
    prompt_length: int  # prompt length of the history of `tokens`: tells how the prompt was cut into passes
    state: memoryview  # the bytes that `Context.save` returned


def key(context: Context) -> bytes:
    """32 bytes that name everything the bits of a context's cache depend on: the file and the build, the machine and
    its threads, whose kernels, and every setting of the context."""
    model, settings = context.model, context.settings
    facts = {
        **shared_facts(model.path, settings, model.gpu_layers, model.device, model.spread),
        "kernels": kernels_id(model.kernels),
        "settings": asdict(settings),
        "exact": context.exact_widths is not None,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


def can_save(context: Context) -> bool:
    """Whether a cache comes back as it was: of layers with a window shorter than the context only the window is
    written."""
    window = int(lib.api().llama_model_n_swa(context.model.handle))
    return not 0 < window < context.n_ctx


def usable(context: Context, tokens: Tokens, prompt_length: int, prompt: Tokens) -> int:
    """Number of leading tokens of a new prompt that a saved cache of `tokens` holds (`Context.reusable`)."""
    settings = context.settings
    cells = Cells(len(tokens), settings.grid if settings.grid_prefill else 0, settings.reuse)
    cells.put(0, tokens)
    cells.prompt_length = prompt_length
    keep = cells.keep(prompt, len(prompt))
    return keep if context.can_trim or keep == cells.length else 0


def write(path: Path, name: bytes, saved: SavedCache) -> None:
    """Writes a file that only its owner can read, whole or not at all; `name` is the `key` of the context. Raises
    OSError: it cannot be written, or the disk is full; nothing is left."""
    digest = hashlib.sha256(saved.state).digest()
    head = _HEAD.pack(_MAGIC, name, saved.prompt_length, len(saved.tokens), len(saved.state), digest)
    front = head + saved.tokens.astype("<i4").tobytes()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(front)
            file.write(hashlib.sha256(front).digest())
            file.write(saved.state)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path, name: bytes, wanted: Callable[[Tokens, int], bool]) -> SavedCache | None:
    """Reads a file back; None if it is missing, damaged, of another key or not wanted: `wanted` is asked with the
    tokens and the prompt length before the state, which may be large, is read."""
    try:
        with open(path, "rb") as file:
            found = _front(file)
            if found is None or found.name != name or not wanted(found.tokens, found.prompt_length):
                return None
            state = memoryview(bytearray(found.size))
            if file.readinto(state) == found.size and hashlib.sha256(state).digest() == found.digest:
                return SavedCache(found.tokens, found.prompt_length, state)
    except (OSError, MemoryError):
        pass
    return None


@dataclass(frozen=True, slots=True)
class CacheHeader:
    """What a file says before the state, and what was checked."""

    name: bytes  # `key` of the context it was taken from; another format of files counts as another key
    tokens: Tokens
    prompt_length: int
    size: int  # bytes of state
    digest: bytes  # SHA-256 of the state


def _front(file: BufferedReader) -> CacheHeader | None:
    """What a file says before the state, whatever its key is; None = it is damaged."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, name, prompt_length, count, size, digest = _HEAD.unpack(head)
    if magic != _MAGIC:
        return CacheHeader(magic, NO_TOKENS, 0, 0, b"")
    if os.fstat(file.fileno()).st_size != _HEAD.size + 4 * count + _DIGEST + size:
        return None
    ids = file.read(4 * count)
    if hashlib.sha256(head + ids).digest() != file.read(_DIGEST):
        return None
    return CacheHeader(name, np.frombuffer(ids, dtype="<i4").astype(np.int32), prompt_length, size, digest)


LEAST_CHAT = 128  # tokens: shorter caches of chats are computed again about as fast as they are found
LEAST_TOKENS = 512  # shorter caches of prompts are not kept: they are computed again in seconds
LEAST_GAIN = 256  # tokens that a kept prompt must spare, or that a new one must hold besides those of the others
NEW_SHARE = 8  # before the end a cache is written when one part in so many is new: a growing chat not each turn
_ABANDONED_SECONDS = 3600.0  # seconds after which a file that is being written has lost its writer

_LOG = logging.getLogger("localspec")


class CacheFolder:
    """Files that hold conversations: only their owner can read them. Trouble with the disk is no error."""

    NAME = "chats"  # in the cache folder

    def __init__(self, budget: int = 0, directory: Path | None = None) -> None:
        """At most `budget` bytes in all (0 = nothing is written); `directory` None = that of `NAME`."""
        self.budget = budget
        self.directory = directory or paths.cache_dir() / self.NAME

    def path(self, chat: str) -> Path:
        """The file of a chat, which may not be there. Its name says nothing about the chat's."""
        return self.directory / f"{hashlib.sha256(chat.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.kv"

    def read(self, chat: str, key: bytes, wanted: Callable[[Tokens, int], bool]) -> SavedCache | None:
        """The cache of a chat, see `read`; it then counts as used."""
        saved = read(self.path(chat), key, wanted)
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
            files = []
            for path in self.directory.iterdir():
                with suppress(OSError):  # another process may be doing the same
                    status = path.stat()
                    if path.suffix == ".kv" and path != self.path(chat):
                        files.append((status.st_mtime, status.st_size, path))
                    elif path.suffix == ".tmp" and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                        path.unlink()  # a killed writer left it
            taken = size + sum(length for _, length, _ in files)
            for _, length, path in sorted(files):  # what was not used for longest goes
                if taken <= self.budget:
                    break
                with suppress(OSError):
                    path.unlink()
                    taken -= length
            write(self.path(chat), key, saved)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def remove(self, chat: str) -> None:
        with suppress(OSError):
            self.path(chat).unlink()


class PromptFolder(CacheFolder):
    """Files of prompts by name, of all models together."""

    NAME = "prompts"

    def path(self, chat: str) -> Path:
        return self.directory / f"{chat}.kv"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.kv"))


class _Caches(ABC):
    """What both keep of one engine's slots. Used on its thread; files are written on another."""

    def __init__(self, context: Context, key: bytes, files: CacheFolder, quiet: Callable[[], float]) -> None:
        """`key`: that of the context, from when its model was loaded. `quiet`: seconds until nothing has run for a
        while."""
        self._context, self._key, self._files, self._quiet = context, key, files, quiet
        self._refused: dict[int, int] = {}  # by slot, tokens that could not be written
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

    @abstractmethod
    def _next(self) -> int | None:
        """The slot whose cache is to be written next; None = there is none."""

    @abstractmethod
    def _save(self, slot: int) -> None:
        """Has a slot's cache written, if there is room and it is worth it."""

    def _taken(self, slot: int) -> SavedCache | None:
        """A copy of what a slot holds; None = there is no room."""
        tokens, prompt_length = self._context.held(slot)
        if self._files.fits(self._context, len(tokens)):
            with suppress(MemoryError):
                return SavedCache(tokens.copy(), prompt_length, self._context.save(slot))
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
        self._on_disk: dict[str, Tokens] = {}  # what the files of these chats hold, if this engine wrote or read them

    def serve(self, slot: int, chat: str | None, prompt: Tokens) -> None:
        """A slot is about to answer a prompt, and nothing else until that ends: the cache it holds is saved if it is
        another chat's, and this chat's is brought back if it spares more of the prompt. `chat` None = its cache is not
        kept."""
        if chat is not None and self.slot(chat) == slot:
            return
        for other in [one for one, its in self._slots.items() if one == chat or its == slot]:
            self._leave(other)
        self._refused.pop(slot, None)
        if chat is None:
            return
        self._slots[chat] = slot
        context = self._context
        here = context.reusable(slot, prompt, len(prompt))

        def wanted(tokens: Tokens, prompt_length: int) -> bool:
            return self._files.fits(context, len(tokens)) and usable(context, tokens, prompt_length, prompt) > here

        self._wait()
        saved = self._files.read(chat, self._key, wanted)
        if saved is not None and context.restore(slot, saved.state, saved.tokens, saved.prompt_length):
            self._on_disk[chat] = saved.tokens

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


class PromptCaches(_Caches):
    """A prompt that begins like a kept one gets that cache, if it spares more than what the slots hold."""

    _files: PromptFolder

    def __init__(self, context: Context, key: bytes, files: PromptFolder, quiet: Callable[[], float]) -> None:
        super().__init__(context, key, files, quiet)
        self._known: dict[str, tuple[Tokens, int] | None] = {}
        """Tokens and prompt length of each file that was looked at, by name; None = it is not for this context."""
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
        kept = [(usable(context, *one, prompt), name) for name, one in self._own()]
        spared, name = max(kept, default=(0, ""))
        if spared < LEAST_TOKENS:
            return
        self._files.used(name)
        if context.copies:  # what another slot holds can be given to this one
            others = [other for other in range(context.settings.n_slots) if other != slot]
            here = max([here, *(context.reusable(other, prompt, len(prompt)) for other in others)])
        if spared - here < LEAST_GAIN:
            return
        self._wait()
        asked: list[bool] = []

        def wanted(tokens: Tokens, prompt_length: int) -> bool:
            asked.append(self._files.fits(context, len(tokens)))
            return asked[-1]

        saved = self._files.read(name, self._key, wanted)
        if saved is not None:
            context.restore(slot, saved.state, saved.tokens, saved.prompt_length)
        elif asked != [False] and self._files.path(name).exists():
            self._damaged(name)

    def move(self, context: Context, key: bytes) -> None:
        super().move(context, key)
        self._known.clear()

    def close(self) -> None:
        for slot in range(self._context.settings.n_slots):
            self._wait()
            if self._new(slot) >= LEAST_GAIN:
                self._save(slot)
        self._writer.shutdown()

    def _own(self) -> list[tuple[str, tuple[Tokens, int]]]:
        return [(name, kept) for name, kept in self._known.items() if kept is not None]

    def _look(self) -> None:
        """Reads what files say that were not looked at; a damaged one is deleted."""
        names = self._files.names()
        coming = self._coming if self._busy() else ""
        self._known = {name: kept for name, kept in self._known.items() if name in names or name == coming}
        others = 0
        for name in [name for name in names if name not in self._known]:
            try:
                with open(self._files.path(name), "rb") as file:
                    found = _front(file)
            except OSError:
                continue
            if found is None:
                self._damaged(name)
                continue
            own = found.name == self._key
            self._known[name] = (found.tokens, found.prompt_length) if own else None
            others += not own and name.startswith(self._model)
        if others:
            what = "1 kept prompt" if others == 1 else f"{others} kept prompts"
            model = self._context.model.path.name
            _LOG.warning("Not used: %s of %s from another build or with other settings.", what, model)

    def _damaged(self, name: str) -> None:
        _LOG.warning("A kept prompt is damaged; %s was deleted.", paths.shown(self._files.path(name)))
        self._files.remove(name)
        self._known.pop(name, None)

    def _new(self, slot: int) -> int:
        """Tokens of a slot's cache that no file holds; 0 if it is too short to be kept."""
        context = self._context
        tokens, _ = context.held(slot)
        if len(tokens) < LEAST_TOKENS or self._refused.get(slot) == len(tokens):
            return 0
        whole = [kept for _, (kept, _) in self._own() if context.can_trim or len(kept) <= len(tokens)]
        return len(tokens) - max((common_prefix(kept, tokens) for kept in whole), default=0)

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
        replaced = [
            other
            for other, (tokens, _) in self._own()
            if self._context.can_trim and len(tokens) - common_prefix(tokens, saved.tokens) < LEAST_GAIN
        ]
        self._coming, self._known[name] = name, (saved.tokens, saved.prompt_length)
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


def default_budget() -> int:
    """Bytes for kept prompts unless told otherwise: 4 GB, or an eighth of the free disk."""
    return min(4 * 10**9, paths.free_bytes(paths.cache_dir()) // 8)
