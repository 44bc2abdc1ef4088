"""Token sequences in one file that only grows, until it is made anew without those of least use.

Every record carries its own checksum, and reading goes on after what is damaged: a write that was interrupted costs
the record it was writing. Writers lock a file beside it, so that several processes can share one; a new one is made
beside it and renamed over the old. The file may grow to the largest budget that any writer was given (kept in another
file beside it, because filelock may empty its own), so that one with a smaller budget does not cut what another keeps.
Only the owner can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from localspec.types import NO_TOKENS, Tokens

_POLL_S = 0.005
"""Between two looks at a lock that another process holds; an append holds it for some milliseconds."""

_MAGIC = b"\xf5lsC"
_HEAD = struct.Struct("<4sBxxxI16sdI")
"""Magic, kind, tokens, name, seconds since 1970, CRC-32 of all but itself. After it the tokens as int32."""
_TOKENS, _USED = 1, 2
"""Kinds of a record: a sequence, and that one was of use."""
_MOST_TOKENS = 1 << 24
KEPT_SHARE = 0.75
"""Of the budget, after what is of least use has left."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """What is kept."""

    name: bytes
    """16 bytes; a later one of the same name takes its place."""
    tokens: Tokens
    """int32[n]."""
    used: float
    """When it came or was of use last, in seconds since 1970."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return _HEAD.size + 4 * len(self.tokens)


@dataclass(slots=True)
class Contents:
    """What was read."""

    sequences: list[Sequence] = field(default_factory=list)
    """Used last comes last."""
    lost: int = 0
    """Bytes that are no sound record."""
    size: int = 0
    """Bytes of the file."""


def name_of(content: bytes | Tokens, chat: str | None = None) -> bytes:
    """16 bytes that stand for a content; those of one chat begin with its mark."""
    data = content if isinstance(content, bytes) else content.astype("<i4").tobytes()
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return digest if chat is None else mark_of(chat) + digest[:8]


def mark_of(chat: str) -> bytes:
    """8 bytes that stand for a chat."""
    return hashlib.blake2b(chat.encode("utf-8", "surrogatepass"), digest_size=8, person=b"chat").digest()


class CorpusFile:
    """One file. Thread-safe as far as the system's file locks are: one object a thread."""

    def __init__(self, path: Path, budget: int) -> None:
        """
        Args:
            path: may not be there yet; nor its folder.
            budget: bytes it may take, if no other writer was given more.
        """
        self.path, self.budget = path, budget

    def read(self) -> Contents:
        """What is there; nothing if there is no file.

        Raises:
            OSError: it cannot be read.
        """
        if not self.path.exists():
            return Contents()
        with self._locked():
            return self._read()

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Writes sequences after what is there, and makes room if they are too many.

        Raises:
            OSError: they cannot be written, or the disk is full; what was there is as it was.
        """
        self._append([_record(_TOKENS, one.name, one.used, one.tokens) for one in sequences])

    def used(self, names: Iterable[bytes]) -> None:
        """Says that sequences were of use now.

        Raises:
            OSError: as `add`.
        """
        self._append([_record(_USED, name, time.time()) for name in names])

    def mend(self) -> None:
        """Makes the file anew of what can be read of it.

        Raises:
            OSError: it cannot be written; what was there is as it was.
        """
        with self._locked():
            self._rewrite(self._size())

    def trim(self) -> int:
        """Cuts it to the budget, which counts from now on whatever other writers were given; sequences that had to go.

        Raises:
            OSError: as `mend`.
        """
        if not self.path.exists():
            return 0
        with self._locked():
            self._agree(self.budget)
            return self._rewrite(self.budget) if self._size() > self.budget else 0

    def remove(self, chat: str) -> int:
        """Takes out what came from a chat; how many sequences that was.

        Raises:
            OSError: as `mend`.
        """
        if not self.path.exists():
            return 0
        with self._locked():
            mark = mark_of(chat)
            found = any(one.name.startswith(mark) for one in self._read().sequences)
            return self._rewrite(self._size(), mark) if found else 0

    def clear(self) -> bool:
        """Deletes it; False if there was none.

        Raises:
            OSError: it cannot be deleted.
        """
        if not self.path.exists():
            return False
        with self._locked():
            self._beside("budget").unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            for left in self.path.parent.glob(f"{self.path.name}.*.tmp"):  # of a process that was killed
                left.unlink(missing_ok=True)
        return True

    def _read(self) -> Contents:
        try:
            return _parsed(self.path.read_bytes())
        except FileNotFoundError:
            return Contents()

    def _append(self, records: list[bytes]) -> None:
        data = b"".join(records)
        if not data:
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            file = os.open(self.path, flags, 0o600)
            try:
                before = os.fstat(file).st_size
                try:
                    _write(file, data)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(file, before)
                    raise
            finally:
                os.close(file)
            room = self._room(before)
            if before + len(data) > room:
                self._rewrite(int(KEPT_SHARE * room))

    def _room(self, size: int) -> int:
        """Bytes the file may take, which has so many."""
        agreed = self._agreed()
        room = max(self.budget, agreed or size)
        if room > agreed:
            self._agree(room)
        return room

    def _agreed(self) -> int:
        """The largest budget that a writer was given, in bytes; 0 = nothing was written yet, or it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._beside("budget").read_bytes())
        return 0

    def _agree(self, budget: int) -> None:
        self._beside("budget").write_bytes(b"%d" % budget)

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _rewrite(self, budget: int, leave: bytes | None = None) -> int:
        """With the sequences used last that fit `budget` bytes, whole or not at all.

        Args:
            budget: bytes.
            leave: names that begin so are left out.

        Returns:
            How many sequences were left out.
        """
        kept: list[Sequence] = []
        sequences = self._read().sequences
        for one in reversed(sequences):
            if one.size <= budget and (leave is None or not one.name.startswith(leave)):
                budget -= one.size
                kept.append(one)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f"{self.path.name}.", suffix=".tmp")
        try:
            try:
                _write(handle, b"".join(_record(_TOKENS, one.name, one.used, one.tokens) for one in reversed(kept)))
            finally:
                os.close(handle)
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return len(sequences) - len(kept)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """While no other process reads or writes. The system lets go of the lock however a process ends."""
        from filelock import FileLock

        with FileLock(self._beside("lock")).acquire(poll_interval=_POLL_S):
            yield

    def _beside(self, what: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{what}")


def _write(file: int, data: bytes) -> None:
    """All of it, and onto the disk."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


def _record(kind: int, name: bytes, when: float, tokens: Tokens = NO_TOKENS) -> bytes:
    payload = tokens.astype("<i4").tobytes()
    head = _HEAD.pack(_MAGIC, kind, len(tokens), name, when, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


def _parsed(data: bytes) -> Contents:
    found: dict[bytes, Sequence] = {}
    at, lost = 0, 0
    while at < len(data):
        end = _end_of(data, at)
        if end:
            _, kind, count, name, when, _ = _HEAD.unpack_from(data, at)
            if kind == _TOKENS:
                tokens: Tokens = np.frombuffer(data, "<i4", count, at + _HEAD.size).astype(np.int32, copy=False)
                found.pop(name, None)
                found[name] = Sequence(name, tokens, when)
            elif name in found:
                found[name] = Sequence(name, found.pop(name).tokens, when)
        else:
            end = data.find(_MAGIC, at + 1)
            end = len(data) if end < 0 else end
            lost += end - at
        at = end
    return Contents(sorted(found.values(), key=lambda one: one.used), lost, len(data))


def _end_of(data: bytes, at: int) -> int:
    """Where a sound record ends that begins there; 0 if none does."""
    if len(data) - at < _HEAD.size:
        return 0
    magic, kind, count, _, _, check = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + 4 * count
    if magic != _MAGIC or kind not in (_TOKENS, _USED) or count > _MOST_TOKENS or end > len(data):
        return 0
    head, payload = data[at : at + _HEAD.size - 4], memoryview(data)[at + _HEAD.size : end]
    return end if zlib.crc32(payload, zlib.crc32(head)) == check else 0
