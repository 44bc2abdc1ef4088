"""Walks over the bytes of a GGUF header, wherever they come from, and believes no length it reads."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

from localspec.errors import ModelFileError

Value: TypeAlias = "int | float | bool | str | list[Any] | Array"

Read: TypeAlias = Callable[[int, int], bytes]
"""`read(offset, length)`: the bytes there, fewer only where the data ends."""

_SCALARS: Final = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
STRING, _ARRAY = 8, 9
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
_SHORT_ARRAY = 64  # arrays up to this length are read at once
_BLOCK, _LARGEST_BLOCK = 1 << 20, 1 << 23
# Far above every real file: the largest vocabularies make headers of 20 MB, the largest models list 3,000 tensors.
_HEADER_BYTES, _STRING_BYTES, NAME_BYTES = 1 << 28, 1 << 24, 1 << 16
MOST_VALUES, MOST_TENSORS, _MOST_ELEMENTS = 1 << 16, 1 << 17, 1 << 23
DOWNLOAD_AGAIN = "Download the file again."


@dataclass(frozen=True, slots=True)
class Array:
    """A long metadata array left in the file; `Header.array` reads it."""

    type: int
    count: int
    offset: int
    """Where its elements start in the file."""
    size: int
    """Bytes of its elements."""


def open_file(path: Path) -> BinaryIO:
    """
    Raises:
        ModelFileError: it is not there, not a file, or not readable.
    """
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a directory, not a model file.", "Name a .gguf file inside it.")
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise ModelFileError(f"{path} is a pipe or device, not a model file.")
        return open(path, "rb")
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


class Kept:
    """A range reader that keeps what came: a header is read front to back, its arrays later once more."""

    def __init__(self, read: Read, size: int) -> None:
        self._read, self._size = read, size
        self._data, self._block = bytearray(), _BLOCK

    def __call__(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._size)
        while len(self._data) < end and len(self._data) <= _HEADER_BYTES:
            have = len(self._data)
            wanted = min(self._block, self._size - have)
            fresh = self._read(have, wanted)
            if not fresh:
                break
            self._data += fresh[:wanted]
            self._block = min(2 * self._block, _LARGEST_BLOCK)
        return bytes(self._data[offset:end])


def file_read(file: BinaryIO, path: Path) -> Read:
    """Ranges of an open file; an I/O error becomes a `ModelFileError` that names `path`."""

    def read(offset: int, length: int) -> bytes:
        try:
            file.seek(offset)
            return file.read(length)
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from error

    return read


class Reader:
    """Walks over the bytes forwards, refusing to go beyond their end or the size of any real header."""

    def __init__(self, read: Read, path: Path, size: int, offset: int = 0) -> None:
        self.path, self.size = path, size
        self._read, self._base, self._at, self._data = read, offset, 0, b""

    @property
    def offset(self) -> int:
        return self._base + self._at

    def corrupt(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self.path} is corrupt: {what}.", DOWNLOAD_AGAIN)

    def check(self, count: int, what: str) -> None:
        """Refuses to go `count` bytes on if they cannot be there."""
        missing = self.offset + count - self.size
        if missing > 0:
            if missing > 1 << 44:
                self.corrupt(f"{what} claims to be {count} bytes long")
            raise ModelFileError(
                f"{self.path} is truncated: it ends {missing} bytes before the end of {what}.", DOWNLOAD_AGAIN
            )
        if self.offset + count > _HEADER_BYTES:
            self.corrupt(f"{what} ends beyond {_HEADER_BYTES >> 20} MiB, where no header does")

    def need(self, count: int, what: str) -> None:
        """Makes the next `count` bytes available."""
        self.check(count, what)
        if self._at + count > len(self._data):
            rest = self._data[self._at :]
            self._base, self._at = self._base + self._at, 0
            self._data = rest + self._read(self._base + len(rest), max(_BLOCK, count - len(rest)))
            if len(self._data) < count:
                raise ModelFileError(f"{self.path} became shorter while it was read.", DOWNLOAD_AGAIN)

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        self._at += count
        return self._data[self._at - count : self._at]

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        self.need(layout.size, what)
        self._at += layout.size
        return layout.unpack_from(self._data, self._at - layout.size)[0]

    def text(self, what: str, most: int = _STRING_BYTES) -> bytes:
        length = self.scalar(U64, what)
        if length > most:
            self.corrupt(f"{what} claims a text of {length} bytes")
        return self.take(length, what)

    def string(self, what: str, most: int = _STRING_BYTES) -> str:
        return self.text(what, most).decode("utf-8", "replace")

    def skip_string(self, what: str) -> None:
        length = self.scalar(U64, what)
        if self._at + length <= len(self._data):
            self._at += length
        else:
            self.skip(length, what)

    def skip_strings(self, count: int, what: str) -> None:
        """`skip_string` so often, without a call for each: a vocabulary and its merges are 300,000 strings."""
        unpack, left = U64.unpack_from, count
        while left:
            data, at = self._data, self._at
            last = len(data) - U64.size  # where a length may begin that is here in full
            while left and at <= last:
                (length,) = unpack(data, at)
                if length > last - at:
                    break
                at += U64.size + length
                left -= 1
            self._at = at
            if left:
                self.skip_string(what)
                left -= 1

    def elements(self, kind: int, count: int, what: str) -> list[Any]:
        if kind == STRING:
            return [self.string(what) for _ in range(count)]
        layout = _SCALARS[kind]
        data = self.take(count * layout.size, what)
        return [value for (value,) in layout.iter_unpack(data)]

    def texts(self, count: int, what: str) -> list[bytes]:
        return [self.text(what) for _ in range(count)]

    def value(self, key: str) -> Value:
        """A metadata value; long arrays are skipped."""
        what = f"the value of {key!r}"
        kind = self.scalar(U32, what)
        if kind in _SCALARS:
            value: Value = self.scalar(_SCALARS[kind], what)
            return value
        if kind == STRING:
            return self.string(what)
        if kind != _ARRAY:
            self.corrupt(f"{what} has the unknown type {kind}")
        inner, count = self.scalar(U32, what), self.scalar(U64, what)
        if inner != STRING and inner not in _SCALARS:
            self.corrupt(f"{what} is an array of the unknown type {inner}")
        smallest = 8 if inner == STRING else _SCALARS[inner].size
        if count * smallest > self.size - self.offset or count > _MOST_ELEMENTS:
            self.corrupt(f"{what} claims {count} elements, more than the rest of the file could hold")
        if count <= _SHORT_ARRAY:
            return self.elements(inner, count, what)
        start = self.offset
        if inner == STRING:
            self.skip_strings(count, what)
        else:
            self.skip(count * smallest, what)
        return Array(inner, count, start, self.offset - start)

    def skip(self, count: int, what: str) -> None:
        self.check(count, what)
        while count > 0:
            step = min(count, _BLOCK)
            self.take(step, what)
            count -= step
