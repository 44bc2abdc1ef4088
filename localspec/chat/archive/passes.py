"""The origin of an answer, pass by pass: who guessed what, and how much of it was accepted.

A part is a run of passes and the bytes of tokens not seen in earlier parts; a streaming answer writes one every half
second. It is a byte that names its format, then compressed JSON: [the fields of all passes, column by column, {token:
its bytes in base64}]. Versions up to 0.2 wrote bytes of their own, which are still read.
"""

from __future__ import annotations

import json
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from localspec.engine.slot import PassRecord
from localspec.errors import UsageError

_EARLIER_FORMAT, _FORMAT = 1, 2
_MOST_BYTES = 256 << 20
"""Of a part once it is unpacked; more is no answer's."""
_DAMAGE = (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, zlib.error)


@dataclass(frozen=True, slots=True)
class Replay:
    """Everything that is known of how an answer came about."""

    passes: list[PassRecord]
    pieces: Mapping[int, bytes]
    """Bytes of every token in `passes`, guesses included; a token without any is missing."""


def tokens_of(record: PassRecord) -> Iterable[int]:
    """All token ids of a pass, guesses included; no next token is -1."""
    yield from record.guesses
    if record.next_token >= 0:
        yield record.next_token


def encode(passes: Iterable[PassRecord], pieces: Mapping[int, bytes]) -> bytes:
    """A part; seconds are kept to a millionth."""
    columns = list(zip(*(record._replace(seconds=round(record.seconds, 6)) for record in passes), strict=True))
    data = [columns, {token: b64encode(piece).decode() for token, piece in sorted(pieces.items())}]
    return bytes([_FORMAT]) + zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 6)


def decode(parts: Iterable[bytes]) -> Replay:
    """Inverse of `encode`, over all parts of an answer. Raises UsageError: bytes that `encode` does not make."""
    passes: list[PassRecord] = []
    pieces: dict[int, bytes] = {}
    for part in parts:
        try:
            if part[0] not in (_EARLIER_FORMAT, _FORMAT):
                raise ValueError(f"format {part[0]} is not known")
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(part[1:], _MOST_BYTES)
            if not unpacking.eof or unpacking.unused_data:
                raise ValueError("it is cut off or too large")
            if part[0] == _FORMAT:
                columns, named = json.loads(data)
                passes += map(_record, zip(*columns, strict=True))
                pieces |= {int(token): b64decode(piece, validate=True) for token, piece in named.items()}
            else:
                found, earlier = _EarlierPart(data).read()
                passes += map(_record, found)
                pieces |= earlier
        except _DAMAGE as error:
            raise UsageError(f"The origin data of an answer is damaged: {error}.") from None
    return Replay(passes, pieces)


def _record(fields: Iterable[Any]) -> PassRecord:
    drafter, *nodes, next_token, width, seconds, drafters = fields
    guesses, parents, accepted = (tuple(map(index, numbers)) for numbers in nodes)
    names = tuple(map(str, drafters))
    if len(parents) != len(guesses) or len(names) not in (0, len(guesses)):
        raise ValueError("a node is missing")
    if not all(0 <= node < len(guesses) for node in accepted):
        raise ValueError("a node that was not guessed is accepted")
    least = min(*guesses, *(parent + 1 for parent in parents), index(next_token) + 1, index(width))
    if least < 0 or not 0 <= float(seconds) < math.inf:
        raise ValueError("a number is out of range")
    return PassRecord(str(drafter), guesses, parents, accepted, index(next_token), index(width), float(seconds), names)


# The format of versions up to 0.2. Numbers are LEB128. A pass is a flags byte, then what the flags do not already say:
# drafter, guesses, who guessed each, parents, accepted, next token, width, microseconds.

_CHAIN, _LEADING, _WIDTH, _EMPTY, _SEVERAL = 1, 2, 4, 8, 16
"""Flags: the guesses are a chain; the accepted ones are the first; width is 1 + guesses; there are no guesses; several
drafters guessed."""


class _EarlierPart:
    """Takes the values of a part one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._drafters: list[str] = []

    def read(self) -> tuple[list[PassRecord], dict[int, bytes]]:
        passes = [self._pass() for _ in range(self._count())]
        pieces = {self._number(): self._bytes() for _ in range(self._count())}
        if self._at != len(self._data):
            raise ValueError("something follows its end")
        return passes, pieces

    def _pass(self) -> PassRecord:
        flags, drafter = self._number(), ""
        guesses: tuple[int, ...] = ()
        parents, accepted = guesses, guesses
        several: tuple[str, ...] = ()
        if not flags & _EMPTY:
            drafter = self._drafter()
            guesses = self._numbers()
            if flags & _SEVERAL:
                several = tuple(self._drafter() for _ in guesses)
            chain = range(-1, len(guesses) - 1)
            parents = tuple(chain) if flags & _CHAIN else tuple(number - 1 for number in self._numbers())
            depth = self._number()
            if depth > len(guesses):
                raise ValueError("more was accepted than guessed")
            accepted = tuple(range(depth)) if flags & _LEADING else self._numbers()
        next_token = self._number() - 1
        width = 1 + len(guesses) if flags & _WIDTH else self._number()
        return PassRecord(drafter, guesses, parents, accepted, next_token, width, self._number() / 1e6, several)

    def _drafter(self) -> str:
        at = self._number()
        if at == len(self._drafters):  # its name stands where it first occurs
            self._drafters.append(self._bytes().decode())
        return self._drafters[at]

    def _number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number has no end")

    def _count(self) -> int:
        """A number of things that follow, each of which takes a byte at least."""
        value = self._number()
        if value > len(self._data) - self._at:
            raise ValueError("it ends too early")
        return value

    def _numbers(self) -> tuple[int, ...]:
        return tuple(self._number() for _ in range(self._count()))

    def _bytes(self) -> bytes:
        length = self._count()
        self._at += length
        return self._data[self._at - length : self._at]


class Recorder:
    """Collects the passes of an answer under way until they are written."""

    def __init__(self, piece: Callable[[int], bytes] | None) -> None:
        """piece: bytes of a token, asked once for each; None = they are not kept."""
        self._piece = piece
        self._seen: set[int] = set()
        self._passes: list[PassRecord] = []
        self._pieces: dict[int, bytes] = {}

    def add(self, record: PassRecord) -> None:
        self._passes.append(record)
        if self._piece is None:
            return
        for token in tokens_of(record):
            if token not in self._seen:
                self._seen.add(token)
                self._pieces[token] = self._piece(token)

    def fresh(self) -> tuple[list[PassRecord], dict[int, bytes]]:
        return list(self._passes), dict(self._pieces)

    def forget(self, passes: int, pieces: Iterable[int]) -> None:
        """So many passes, and the bytes of these tokens, are written."""
        del self._passes[:passes]
        for token in pieces:
            del self._pieces[token]
