"""Reads what a GGUF file says about itself, without tensor data and without llama.cpp.

Every count and length is checked against the size of the file, and against limits no real file comes near, before
anything is allocated: any bytes at all lead to a `Header` or to a `ModelFileError` with one clear sentence. The bytes
may come from anything that can be read by ranges. Format: ggml's docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.errors import ModelFileError
from localspec.gguf.formats import FILE_TYPES, PACKED, TENSOR_TYPES, TYPE_NUMBERS, packs
from localspec.gguf.reader import (
    DOWNLOAD_AGAIN,
    MOST_TENSORS,
    MOST_VALUES,
    NAME_BYTES,
    STRING,
    U32,
    U64,
    Array,
    Kept,
    Read,
    Reader,
    Value,
    file_read,
    open_file,
)

__all__ = [
    "FILE_TYPES",
    "PACKED",
    "TENSOR_TYPES",
    "TYPE_NUMBERS",
    "Array",
    "Header",
    "Read",
    "Tensor",
    "Value",
    "packs",
    "read_header",
    "read_header_from",
]

_KEPT = 8
"""Headers that stay in memory: loading asks several times for those of a pair, and a large vocabulary takes 0.2 s."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the header describes it."""

    name: str
    shape: tuple[int, ...]
    """Elements per dimension, fastest first (ggml's order)."""
    type: str
    offset: int
    """Where its data starts in the file."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Header:
    """Facts of one GGUF file that is complete."""

    path: Path
    file_bytes: int
    version: int
    metadata: dict[str, Value]
    """Long arrays are `Array`; use `array(key)`."""
    tensors: tuple[Tensor, ...] = field(repr=False)
    read: Read = field(repr=False, compare=False)
    """Reads the file again, for `array`."""

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def name(self) -> str:
        """What the file calls the model, else the file's name."""
        return self.text("general.name") or self.path.stem

    @property
    def context_length(self) -> int:
        """Tokens the model was trained for; 0 if not stated."""
        return self.number("context_length")

    @property
    def n_layers(self) -> int:
        """0 if not stated."""
        return self.number("block_count")

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(_product(tensor.shape) for tensor in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def quantisation(self) -> str:
        """Such as "Q4_K_M": as stated, else the type that most bytes have."""
        stated = self.metadata.get("general.file_type")
        if isinstance(stated, int) and stated % 1024 in FILE_TYPES:
            return FILE_TYPES[stated % 1024]
        sizes: Counter[str] = Counter()
        for tensor in self.tensors:
            sizes[tensor.type] += tensor.size
        return sizes.most_common(1)[0][0] if sizes else "none"

    @property
    def chat_template(self) -> str | None:
        return self.text("tokenizer.chat_template") or None

    @property
    def tokens(self) -> list[str]:
        """Text of every token, by id; empty if the file has no vocabulary."""
        return [str(token) for token in self.array("tokenizer.ggml.tokens")]

    @property
    def token_bytes(self) -> list[bytes]:
        """Bytes of every token's text, by id: what `tokens` decodes, and two texts that are no UTF-8 stay two."""
        key = "tokenizer.ggml.tokens"
        value = self.metadata.get(key)
        if isinstance(value, Array) and value.type == STRING:
            return Reader(self.read, self.path, self.file_bytes, value.offset).texts(value.count, key)
        return [token.encode("utf-8", "replace") for token in self.tokens]

    @property
    def token_types(self) -> list[int]:
        """llama.cpp's type of every token (1 normal, 3 control, 4 user-defined, 6 byte); may be empty."""
        return [kind for kind in self.array("tokenizer.ggml.token_type") if isinstance(kind, int)]

    @property
    def merges(self) -> list[str]:
        """BPE merges, best first; empty for other tokenizers."""
        return [str(merge) for merge in self.array("tokenizer.ggml.merges")]

    def text(self, key: str) -> str:
        """A string value, "" if absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def flag(self, key: str) -> bool | None:
        """A truth value, None if absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    def number(self, key: str) -> int:
        """An integer value of the architecture's own key ("block_count" for "llama.block_count"), 0 if absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else 0

    def numbers(self, key: str) -> list[int]:
        """Integers of the architecture's own key: one for each layer where the file lists them, else one; 0 for what
        is no integer, or absent.
        """
        found = self.array(f"{self.architecture}.{key}") or [self.number(key)]
        return [value if isinstance(value, int) else 0 for value in found]

    def real(self, key: str) -> float:
        """A number of the architecture's own key, 0 if absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int | float) else 0

    def count(self, key: str) -> int:
        """Elements of an array value, 0 if absent."""
        value = self.metadata.get(key)
        return value.count if isinstance(value, Array) else len(value) if isinstance(value, list) else 0

    def raw(self, key: str) -> bytes:
        """An array value as it is written, for comparing two files; b"" if absent."""
        value = self.metadata.get(key)
        if not isinstance(value, Array):
            return repr(value).encode("utf-8", "replace") if isinstance(value, list) else b""
        return Reader(self.read, self.path, self.file_bytes, value.offset).take(value.size, key)

    def array(self, key: str) -> list[Any]:
        """All elements of an array value, empty if absent."""
        value = self.metadata.get(key)
        if not isinstance(value, Array):
            return value if isinstance(value, list) else []
        return Reader(self.read, self.path, self.file_bytes, value.offset).elements(value.type, value.count, key)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Reads and checks a file's header, and that every tensor it lists is inside the file."""
    path = Path(path)
    with open_file(path) as file:
        status = os.fstat(file.fileno())
    return _read_header(path, status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns))


@functools.lru_cache(maxsize=_KEPT)
def _read_header(path: Path, size: int, version: tuple[int, ...]) -> Header:
    """The header of a file of this size; `version` tells it from what the path held before."""

    def again(offset: int, length: int) -> bytes:
        with open_file(path) as file:
            return file_read(file, path)(offset, length)

    with open_file(path) as file:
        return _header(Reader(file_read(file, path), path, size), again)


def read_header_from(read: Read, file_bytes: int, name: str) -> Header:
    """Reads a header through ranges, from front to back, each byte once: 1 MiB first, then twice as much each time.

    Args:
        read: says the bytes of a range; what it raises passes through.
        file_bytes: length of the whole file.
        name: what messages call it; becomes `Header.path`.

    Returns:
        A header that has all its arrays in memory: `read` is not called again.
    """
    kept = Kept(read, file_bytes)
    return _header(Reader(kept, Path(name), file_bytes), kept)


def _header(reader: Reader, read: Read) -> Header:
    path = reader.path
    if reader.size == 0:
        raise ModelFileError(f"{path} is empty.", DOWNLOAD_AGAIN)
    magic = reader.take(min(4, reader.size), "the GGUF mark")
    if magic != b"GGUF":
        begin = repr(magic.decode("ascii")) if magic.isascii() else f"the bytes {magic.hex(' ')}"
        raise ModelFileError(
            f"{path} is not a GGUF file (it starts with {begin}).",
            "localspec runs models in llama.cpp's GGUF format.",
        )
    version = reader.scalar(U32, "the version")
    if version not in (2, 3):
        if version & 0xFFFF == 0 and version:
            raise ModelFileError(f"{path} is a big-endian GGUF file.", "Convert it for little-endian machines.")
        raise ModelFileError(f"{path} is GGUF version {version}; versions 2 and 3 can be read.")
    n_tensors, n_values = reader.scalar(U64, "the header"), reader.scalar(U64, "the header")
    left = reader.size - reader.offset
    if n_values * 13 > left or n_tensors * 25 > left or n_values > MOST_VALUES or n_tensors > MOST_TENSORS:
        reader.corrupt(f"{n_tensors} tensors and {n_values} metadata values do not fit into {reader.size} bytes")
    metadata: dict[str, Value] = {}
    for index in range(n_values):
        key = reader.string(f"the name of metadata value {index}", NAME_BYTES)
        if not key or key in metadata:
            reader.corrupt(f"metadata value {index} has {'no name' if not key else f'the name {key!r} of another'}")
        metadata[key] = reader.value(key)
    tensors = _tensors(reader, n_tensors, _alignment(reader, metadata))
    return Header(path, reader.size, version, metadata, tensors, read)


def _alignment(reader: Reader, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 30:
        reader.corrupt(f"its alignment is {str(alignment)[:40]}, not a power of 2")
    return alignment


def _tensors(reader: Reader, count: int, alignment: int) -> tuple[Tensor, ...]:
    """The tensor list; every tensor must lie within the file, in order and without gaps but padding."""
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(count):
        what = f"the description of tensor {index}"
        name = reader.string(what, NAME_BYTES)
        if name in found or len(name.encode("utf-8", "replace")) >= 64:
            reader.corrupt(
                f"tensor {index} has the name {name[:40]!r}, which is {'a repeat' if name in found else 'too long'}"
            )
        dimensions = reader.scalar(U32, what)
        if dimensions > 4:
            reader.corrupt(f"tensor {name!r} has {dimensions} dimensions; at most 4 are possible")
        shape = tuple(reader.scalar(U64, what) for _ in range(dimensions))
        kind, offset = reader.scalar(U32, what), reader.scalar(U64, what)
        if kind not in TENSOR_TYPES:
            reader.corrupt(f"tensor {name!r} has the unknown type {kind}")
        found[name] = (shape, kind, offset)
    start = -(-reader.offset // alignment) * alignment
    tensors, expected = [], 0
    for name, (shape, kind, offset) in found.items():
        label, block, block_bytes = TENSOR_TYPES[kind]
        row = shape[0] if shape else 1
        if row % block:
            reader.corrupt(f"rows of tensor {name!r} have {row} elements, no multiple of {block} ({label})")
        if offset != expected:
            reader.corrupt(f"tensor {name!r} starts at {offset} of the data instead of {expected}")
        size = _product(shape) // block * block_bytes
        missing = start + offset + size - reader.size
        if missing > 0:
            if missing > 1 << 50:
                reader.corrupt(f"tensor {name!r} claims {size} bytes")
            missing = _total(found, start) - reader.size
            raise ModelFileError(
                f"{reader.path} is truncated: {missing} bytes are missing (tensor {name!r} ends beyond the file).",
                DOWNLOAD_AGAIN,
            )
        tensors.append(Tensor(name, shape, label, start + offset, size))
        expected = -(-(offset + size) // alignment) * alignment
    return tuple(tensors)


def _total(found: dict[str, tuple[tuple[int, ...], int, int]], start: int) -> int:
    """Bytes the whole file should have (up to padding)."""
    ends = (
        offset + _product(shape) // TENSOR_TYPES[kind][1] * TENSOR_TYPES[kind][2]
        for shape, kind, offset in found.values()
    )
    return start + max(ends)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
