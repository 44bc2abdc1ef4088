"""The origin of an answer, pass by pass, in few bytes: who guessed what, and how much of it was accepted.

A part is a run of passes and the bytes of tokens not seen in earlier parts, compressed; a streaming answer writes one
every half second. Numbers are LEB128. A pass is a flags byte, then what the flags do not
already say: drafter, guesses, who guessed each, parents, accepted, next token, width, microseconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from localspec.engine.slot import PassRecord
from localspec.errors import UsageError

_CHAIN, _LEADING, _WIDTH, _EMPTY, _SEVERAL = 1, 2, 4, 8, 16
"""Flags: the guesses are a chain; the accepted ones are the first; width is 1 + guesses; there are no guesses; several
drafters guessed."""
_FORMAT = 1
_MOST_BYTES = 256 << 20
"""Of a part once it is unpacked; more is no answer's."""


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
    """A part."""
    out = bytearray()
    drafters: list[str] = []
    records = list(passes)
    _put(out, len(records))
    for record in records:
        _put_pass(out, record, drafters)
    _put(out, len(pieces))
    for token in sorted(pieces):
        _put(out, token)
        _put_bytes(out, pieces[token])
    return bytes([_FORMAT]) + zlib.compress(bytes(out), 6)


def decode(parts: Iterable[bytes]) -> Replay:
    """Inverse of `encode`, over all parts of an answer.

    Raises:
        UsageError: bytes that `encode` does not make.
    """
    passes: list[PassRecord] = []
    pieces: dict[int, bytes] = {}
    for part in parts:
        try:
            _decode_part(part, passes, pieces)
        except (IndexError, ValueError, OverflowError, zlib.error) as error:
            raise UsageError(f"The origin data of an answer is damaged: {error}.") from None
    return Replay(passes, pieces)


def _decode_part(part: bytes, passes: list[PassRecord], pieces: dict[int, bytes]) -> None:
    if part[0] != _FORMAT:
        raise ValueError(f"format {part[0]} is not known")
    unpacking = zlib.decompressobj()
    reader = _Reader(unpacking.decompress(part[1:], _MOST_BYTES))
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("it is cut off or too large")
    drafters: list[str] = []
    passes += [_take_pass(reader, drafters) for _ in range(reader.count())]
    for _ in range(reader.count()):
        token = reader.number()
        pieces[token] = reader.bytes()
    if not reader.at_end:
        raise ValueError("something follows its end")


def _put_pass(out: bytearray, record: PassRecord, drafters: list[str]) -> None:
    count, depth = len(record.guesses), len(record.accepted)
    chain = tuple(record.parents) == tuple(range(-1, count - 1))
    leading = tuple(record.accepted) == tuple(range(depth))
    empty = not (count or depth or record.drafter or record.parents)
    flags = _CHAIN * chain | _LEADING * leading | _WIDTH * (record.width == 1 + count) | _EMPTY * empty
    out.append(flags | _SEVERAL * bool(record.drafters))
    if not empty:
        _put_drafter(out, record.drafter, drafters)
        _put_all(out, record.guesses)
        for name in record.drafters:
            _put_drafter(out, name, drafters)
        if not chain:
            _put_all(out, (parent + 1 for parent in record.parents), len(record.parents))
        _put(out, depth)
        if not leading:
            _put_all(out, record.accepted)
    _put(out, record.next_token + 1)
    if record.width != 1 + count:
        _put(out, record.width)
    _put(out, max(0, round(record.seconds * 1e6)))


def _put_drafter(out: bytearray, name: str, known: list[str]) -> None:
    if name in known:
        _put(out, known.index(name))
        return
    known.append(name)
    _put(out, len(known) - 1)
    _put_bytes(out, name.encode())


def _take_drafter(reader: _Reader, known: list[str]) -> str:
    index = reader.number()
    if index == len(known):
        known.append(reader.bytes().decode())
    return known[index]


def _take_pass(reader: _Reader, drafters: list[str]) -> PassRecord:
    flags = reader.byte()
    drafter = ""
    guesses: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    several: tuple[str, ...] = ()
    if not flags & _EMPTY:
        drafter = _take_drafter(reader, drafters)
        guesses = reader.numbers()
        if flags & _SEVERAL:
            several = tuple(_take_drafter(reader, drafters) for _ in guesses)
        chain = bool(flags & _CHAIN)
        parents = tuple(range(-1, len(guesses) - 1)) if chain else tuple(n - 1 for n in reader.numbers())
        depth = reader.number()
        if depth > len(guesses):
            raise ValueError("more was accepted than guessed")
        accepted = tuple(range(depth)) if flags & _LEADING else reader.numbers()
        if len(parents) != len(guesses) or any(node >= len(guesses) for node in accepted):
            raise ValueError("a node is missing")
    next_token = reader.number() - 1
    width = 1 + len(guesses) if flags & _WIDTH else reader.number()
    return PassRecord(drafter, guesses, parents, accepted, next_token, width, reader.number() / 1e6, several)


def _put(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _put_all(out: bytearray, numbers: Iterable[int], count: int | None = None) -> None:
    numbers = tuple(numbers)
    _put(out, len(numbers) if count is None else count)
    for number in numbers:
        _put(out, number)


def _put_bytes(out: bytearray, data: bytes) -> None:
    _put(out, len(data))
    out += data


class _Reader:
    """Takes what `_put` and its kin have put."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number has no end")

    def count(self) -> int:
        """A number of things that follow, each of which takes a byte at least."""
        value = self.number()
        if value > len(self._data) - self._at:
            raise ValueError("it ends too early")
        return value

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number() for _ in range(self.count()))

    def bytes(self) -> bytes:
        length = self.count()
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
        """One more pass."""
        self._passes.append(record)
        if self._piece is None:
            return
        for token in tokens_of(record):
            if token not in self._seen:
                self._seen.add(token)
                self._pieces[token] = self._piece(token)

    def fresh(self) -> tuple[list[PassRecord], dict[int, bytes]]:
        """What came and was not forgotten."""
        return list(self._passes), dict(self._pieces)

    def forget(self, passes: int, pieces: Iterable[int]) -> None:
        """So many passes, and the bytes of these tokens, are written."""
        del self._passes[:passes]
        for token in pieces:
            del self._pieces[token]
