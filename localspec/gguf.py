"""Reads what a GGUF file says about itself, without tensor data and without llama.cpp.

Every count and length is checked against the size of the file before anything is allocated, so any bytes at all lead
to a `Header` or to a `ModelFileError` with one clear sentence. Format: ggml's docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

from localspec.errors import ModelFileError

Value: TypeAlias = "int | float | bool | str | list[Any] | Array"

TENSOR_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
"""ggml tensor type -> (name, elements per block, bytes per block)."""

FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""`general.file_type` -> the name people use."""

_SCALARS: Final = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SHORT_ARRAY = 64  # arrays up to this length are read at once
_BLOCK = 1 << 20
_AGAIN = "Download the file again."


@dataclass(frozen=True, slots=True)
class Array:
    """A long metadata array left in the file; `Header.array` reads it."""

    type: int
    count: int
    offset: int
    """Where its elements start in the file."""


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
    def token_types(self) -> list[int]:
        """llama.cpp's type of every token (1 normal, 3 control, 4 user-defined, 6 byte); may be empty."""
        return [int(kind) for kind in self.array("tokenizer.ggml.token_type")]

    @property
    def merges(self) -> list[str]:
        """BPE merges, best first; empty for other tokenizers."""
        return [str(merge) for merge in self.array("tokenizer.ggml.merges")]

    def text(self, key: str) -> str:
        """A string value, "" if absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int:
        """An integer value of the architecture's own key ("block_count" for "llama.block_count"), 0 if absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else 0

    def array(self, key: str) -> list[Any]:
        """All elements of an array value, empty if absent.

        Raises:
            ModelFileError: the file has changed since its header was read.
        """
        value = self.metadata.get(key)
        if not isinstance(value, Array):
            return value if isinstance(value, list) else []
        with _open(self.path) as file:
            reader = _Reader(file, self.path, os.fstat(file.fileno()).st_size, value.offset)
            return reader.elements(value.type, value.count, key)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Reads and checks a file's header, and that every tensor it lists is inside the file.

    Raises:
        ModelFileError: missing, not a file, not GGUF, an unknown version, corrupt or truncated.
    """
    path = Path(path)
    with _open(path) as file:
        try:
            return _read(_Reader(file, path, os.fstat(file.fileno()).st_size))
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from error


def _open(path: Path) -> BinaryIO:
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a directory, not a model file.", "Name a .gguf file inside it.")
        return open(path, "rb")
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


class _Reader:
    """Walks a file forwards, refusing to go beyond its end."""

    def __init__(self, file: BinaryIO, path: Path, size: int, offset: int = 0) -> None:
        self.path, self.size = path, size
        self._file, self._base, self._at, self._data = file, offset, 0, b""
        file.seek(offset)

    @property
    def offset(self) -> int:
        return self._base + self._at

    def corrupt(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self.path} is corrupt: {what}.", _AGAIN)

    def need(self, count: int, what: str) -> None:
        """Makes the next `count` bytes available."""
        missing = self.offset + count - self.size
        if missing > 0:
            if missing > 1 << 44:
                self.corrupt(f"{what} claims to be {count} bytes long")
            raise ModelFileError(f"{self.path} is truncated: it ends {missing} bytes before the end of {what}.", _AGAIN)
        if self._at + count > len(self._data):
            fresh = self._file.read(max(_BLOCK, count))
            self._data = self._data[self._at :] + fresh
            self._base, self._at = self._base + self._at, 0
            if len(self._data) < count:
                raise ModelFileError(f"{self.path} became shorter while it was read.", _AGAIN)

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        self._at += count
        return self._data[self._at - count : self._at]

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        self.need(layout.size, what)
        self._at += layout.size
        return layout.unpack_from(self._data, self._at - layout.size)[0]

    def string(self, what: str) -> str:
        return self.take(self.scalar(_U64, what), what).decode("utf-8", "replace")

    def skip_string(self, what: str) -> None:
        length = self.scalar(_U64, what)
        if self._at + length <= len(self._data):
            self._at += length
        else:
            self.take(length, what)

    def elements(self, kind: int, count: int, what: str) -> list[Any]:
        if kind == _STRING:
            return [self.string(what) for _ in range(count)]
        layout = _SCALARS[kind]
        data = self.take(count * layout.size, what)
        return [value for (value,) in layout.iter_unpack(data)]

    def value(self, key: str) -> Value:
        """A metadata value; long arrays are skipped."""
        what = f"the value of {key!r}"
        kind = self.scalar(_U32, what)
        if kind in _SCALARS:
            value: Value = self.scalar(_SCALARS[kind], what)
            return value
        if kind == _STRING:
            return self.string(what)
        if kind != _ARRAY:
            self.corrupt(f"{what} has the unknown type {kind}")
        inner, count = self.scalar(_U32, what), self.scalar(_U64, what)
        if inner != _STRING and inner not in _SCALARS:
            self.corrupt(f"{what} is an array of the unknown type {inner}")
        smallest = 8 if inner == _STRING else _SCALARS[inner].size
        if count * smallest > self.size - self.offset:
            self.corrupt(f"{what} claims {count} elements, more than the rest of the file could hold")
        if count <= _SHORT_ARRAY:
            return self.elements(inner, count, what)
        array = Array(inner, count, self.offset)
        if inner == _STRING:
            for _ in range(count):
                self.skip_string(what)
        else:
            self.skip(count * smallest, what)
        return array

    def skip(self, count: int, what: str) -> None:
        while count > 0:
            step = min(count, _BLOCK)
            self.take(step, what)
            count -= step


def _read(reader: _Reader) -> Header:
    path = reader.path
    if reader.size == 0:
        raise ModelFileError(f"{path} is empty.", _AGAIN)
    magic = reader.take(4, "the GGUF mark") if reader.size >= 4 else b""
    if magic != b"GGUF":
        raise ModelFileError(
            f"{path} is not a GGUF file (it starts with {magic!r}).",
            "localspec runs models in llama.cpp's GGUF format.",
        )
    version = reader.scalar(_U32, "the version")
    if version not in (2, 3):
        if version & 0xFFFF == 0 and version:
            raise ModelFileError(f"{path} is a big-endian GGUF file.", "Convert it for little-endian machines.")
        raise ModelFileError(f"{path} is GGUF version {version}; versions 2 and 3 can be read.")
    n_tensors, n_values = reader.scalar(_U64, "the header"), reader.scalar(_U64, "the header")
    left = reader.size - reader.offset
    if n_values * 13 > left or n_tensors * 25 > left:
        reader.corrupt(f"{n_tensors} tensors and {n_values} metadata values do not fit into {reader.size} bytes")
    metadata: dict[str, Value] = {}
    for index in range(n_values):
        key = reader.string(f"the name of metadata value {index}")
        if not key or key in metadata:
            reader.corrupt(f"metadata value {index} has {'no name' if not key else f'the name {key!r} of another'}")
        metadata[key] = reader.value(key)
    return Header(path, reader.size, version, metadata, _tensors(reader, n_tensors, _alignment(reader, metadata)))


def _alignment(reader: _Reader, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 30:
        reader.corrupt(f"its alignment is {str(alignment)[:40]}, not a power of 2")
    return alignment


def _tensors(reader: _Reader, count: int, alignment: int) -> tuple[Tensor, ...]:
    """The tensor list; every tensor must lie within the file, in order and without gaps but padding."""
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(count):
        what = f"the description of tensor {index}"
        name = reader.string(what)
        if name in found or len(name.encode("utf-8", "replace")) >= 64:
            reader.corrupt(
                f"tensor {index} has the name {name[:40]!r}, which is {'a repeat' if name in found else 'too long'}"
            )
        dimensions = reader.scalar(_U32, what)
        if dimensions > 4:
            reader.corrupt(f"tensor {name!r} has {dimensions} dimensions; at most 4 are possible")
        shape = tuple(reader.scalar(_U64, what) for _ in range(dimensions))
        kind, offset = reader.scalar(_U32, what), reader.scalar(_U64, what)
        if kind not in TENSOR_TYPES:
            reader.corrupt(f"tensor {name!r} has the unknown type {kind}")
        found[name] = (shape, kind, offset)
    start = -(-reader.offset // alignment) * alignment
    tensors, expected = [], 0
    for name, (shape, kind, offset) in found.items():
        label, block, block_bytes = TENSOR_TYPES[kind]
        if (shape[0] if shape else 1) % block:
            reader.corrupt(f"rows of tensor {name!r} have {shape[0]} elements, no multiple of {block} ({label})")
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
                _AGAIN,
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
