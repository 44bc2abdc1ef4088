"""The KV caches of long prompts on disk: a prompt that comes again is not read anew, even after a restart.

What slots hold is written in idle time, when a slot goes to another prompt, and when the engine is closed. A prompt
that begins like a kept one gets that cache, if it spares more than what the slots hold. What comes back is what the
slot held, bit for bit.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.llama.cache import saved_cache
from localspec.llama.cache.cells import common_prefix
from localspec.llama.cache.context import Context
from localspec.llama.cache.saved_cache import SavedCache
from localspec.runtime.kept.chat_caches import CacheFolder
from localspec.types import Tokens

LEAST_TOKENS = 512
"""Shorter caches are not kept: they are computed again in seconds."""
LEAST_GAIN = 256
"""Tokens that a kept cache must spare, or that a new one must hold besides those of the others."""
NEW_SHARE = 8
"""Before the end a cache is written when one part in so many of it is new: a chat that grows is not written at every
turn."""

_LOG = logging.getLogger("localspec")


class PromptFolder(CacheFolder):
    """Files of prompts by name, of all models together."""

    def __init__(self, budget: int = 0, directory: Path | None = None) -> None:
        """`directory` None = "prompts" in the cache folder."""
        super().__init__(budget, directory or paths.cache_dir() / "prompts")

    def path(self, chat: str) -> Path:
        """The file of a prompt, by its name."""
        return self.directory / f"{chat}.kv"

    def names(self) -> list[str]:
        """Of all files that are there."""
        return sorted(path.stem for path in self.directory.glob("*.kv"))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A file that can be used here."""

    name: str
    tokens: Tokens
    prompt_length: int

    def adds(self, tokens: Tokens) -> int:
        """Number of its tokens that a cache of these tokens does not hold."""
        return len(self.tokens) - common_prefix(self.tokens, tokens)


class PromptCaches:
    """Of one engine. Used on its thread; files are written on another."""

    def __init__(self, context: Context, key: bytes, files: PromptFolder, quiet: Callable[[], float]) -> None:
        """
        Args:
            context: whose slots they are.
            key: `saved_cache.key` of the context, from when its model was loaded.
            files: where they are kept.
            quiet: seconds until nothing has run for a while.
        """
        self._context, self._key, self._files, self._quiet = context, key, files, quiet
        self._known: dict[str, _Kept | None] = {}
        """Files that were looked at, by name; None = not for this context."""
        self._refused: dict[int, int] = {}
        """By slot, the tokens that it held when they could not be written; not tried again before there are more."""
        self._writer = ThreadPoolExecutor(1, "localspec-prompt-cache")
        self._writing: Future[None] | None = None
        self._coming = ""
        """Name of the file that is being written, or was written last."""
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

    # -- what the engine's thread calls ------------------------------------------------------------------------------

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
        found = max(((self._spares(kept, prompt), kept.name) for kept in self._own()), default=(0, ""))
        spared, name = found
        if spared < LEAST_TOKENS:
            return
        self._files.used(name)
        if spared - max(here, self._beside(slot, prompt)) >= LEAST_GAIN:
            self._bring_back(slot, name, prompt)

    @property
    def wait(self) -> float | None:
        """See `IdleJob.wait`."""
        return None if self._next() is None or self._busy() else self._quiet()

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
        self._known.clear()
        self._refused.clear()

    def close(self) -> None:
        """Has everything written that is not on disk, and waits for it."""
        for slot in range(self._context.settings.n_slots):
            self._wait()
            if self._new(slot) >= LEAST_GAIN:
                self._save(slot)
        self._writer.shutdown()

    # -- what is kept ------------------------------------------------------------------------------------------------

    def _own(self) -> list[_Kept]:
        return [kept for kept in self._known.values() if kept is not None]

    def _look(self) -> None:
        """Looks at files that are new, and forgets those that are gone."""
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

    def _spares(self, kept: _Kept, prompt: Tokens) -> int:
        """Leading tokens of a prompt that a kept cache holds."""
        return saved_cache.usable(self._context, kept.tokens, kept.prompt_length, prompt)

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
        """The slot whose cache is to be written next; None = there is none."""
        for slot in range(self._context.settings.n_slots):
            new = self._new(slot)
            if new >= LEAST_GAIN and new * NEW_SHARE >= len(self._context.held(slot)[0]):
                return slot
        return None

    # -- files -------------------------------------------------------------------------------------------------------

    def _save(self, slot: int) -> None:
        """Has a slot's cache written, unless another one is being written, or there is no room."""
        context = self._context
        tokens, _ = context.held(slot)
        if self._busy():
            return
        try:
            if not self._files.fits(context, len(tokens)):
                self._refused[slot] = len(tokens)
                return
            saved = saved_cache.take(context, slot)
        except MemoryError:
            self._refused[slot] = len(tokens)
            return
        name = f"{self._model}-{hashlib.sha256(self._key + saved.tokens.tobytes()).hexdigest()[:32]}"
        replaced = [one.name for one in self._own() if context.can_trim and one.adds(saved.tokens) < LEAST_GAIN]
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

    def _busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _wait(self) -> None:
        """For the file that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def default_budget() -> int:
    """Bytes for kept prompts unless told otherwise: 4 GB, or an eighth of the free disk."""
    return min(4 * 10**9, paths.free_bytes(paths.cache_dir()) // 8)
