"""The KV cache of one conversation as a file, so that another process with the same model need not prefill it again.

A file is taken only if everything that can change the bits of the cache is as it was when it was written, and if its
checksums are right: llama.cpp never sees a byte that it did not write itself. What came back is then treated like what
the slot had computed: how much of it a history may keep is decided by `Cells`, as ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from localspec.llama.cache.context import Context
from localspec.llama.exact.facts import kernels_id, shared_facts
from localspec.llama.library import lib
from localspec.llama.library.batch import Cells
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
    """Whether a cache comes back as it was: of layers with a sliding window that is shorter than the context llama.cpp
    writes only what the window still shows."""
    window = int(lib.api().llama_model_n_swa(context.model.handle))
    return not 0 < window < context.n_ctx


def take(context: Context, slot: int = 0) -> SavedCache:
    """What a slot holds now, in memory of its own. On the thread that uses the context; see `can_save`."""
    tokens, prompt_length = context.held(slot)
    return SavedCache(tokens.copy(), prompt_length, context.save(slot))


def put(context: Context, saved: SavedCache, slot: int = 0) -> bool:
    """Brings it back into a slot; False, and an empty slot, if llama.cpp refuses it."""
    return context.restore(slot, saved.state, saved.tokens, saved.prompt_length)


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
            return _read(file, name, wanted)
    except (OSError, MemoryError):
        return None


@dataclass(frozen=True, slots=True)
class Front:
    """What a file says before the state, and what was checked."""

    name: bytes  # `key` of the context it was taken from; another format of files counts as another key
    tokens: Tokens
    prompt_length: int
    size: int  # bytes of state
    digest: bytes  # SHA-256 of the state


def front(path: Path) -> Front | None:
    """What a file says before the state, whatever its key is; None = it is damaged."""
    with open(path, "rb") as file:
        return _front(file)


def _front(file: BufferedReader) -> Front | None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, name, prompt_length, count, size, digest = _HEAD.unpack(head)
    if magic != _MAGIC:
        return Front(magic, NO_TOKENS, 0, 0, b"")
    if os.fstat(file.fileno()).st_size != _HEAD.size + 4 * count + _DIGEST + size:
        return None
    ids = file.read(4 * count)
    if hashlib.sha256(head + ids).digest() != file.read(_DIGEST):
        return None
    return Front(name, np.frombuffer(ids, dtype="<i4").astype(np.int32), prompt_length, size, digest)


def _read(file: BufferedReader, name: bytes, wanted: Callable[[Tokens, int], bool]) -> SavedCache | None:
    found = _front(file)
    if found is None or found.name != name or not wanted(found.tokens, found.prompt_length):
        return None
    state = memoryview(bytearray(found.size))
    if file.readinto(state) != found.size or hashlib.sha256(state).digest() != found.digest:
        return None
    return SavedCache(found.tokens, found.prompt_length, state)
