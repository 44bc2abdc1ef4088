"""Reads what a GGUF file says about itself, without tensor data and without llama.cpp.

Every count and length is checked against the size of the file, and against limits no real file comes near, before
anything is allocated: any bytes at all lead to a `Header` or to a `ModelFileError` with one clear sentence. The bytes
may come from anything that can be read by ranges. Format: ggml's docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import functools
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, NoReturn, TypeAlias

from localspec.errors import ModelFileError

# ggml's numbers of tensor types and file types, and what they mean.

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
TYPE_NUMBERS: Final[dict[str, int]] = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
"""Name -> ggml tensor type."""

PACKED: Final = (
    "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "TQ2_0",
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
)  # fmt: skip
"""Types of weights that our own kernels pack (native/wide/weights.c): a pass of a few rows costs little more than one.
Of other types each row costs almost a pass."""
_TILE: Final = 16  # rows of a matrix that are packed together


def packs(kind: str, columns: int, rows: int) -> bool:
    """Whether our own kernels pack a matrix of this type and shape, where they serve at all."""
    values = max(TENSOR_TYPES[TYPE_NUMBERS[kind]][1], 2)
    return kind in PACKED and columns > 0 and columns % values == 0 and rows > 0 and rows % _TILE == 0


ROLLS_BACK: Final = frozenset(
    {
        "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen4exp",
    }
)  # fmt: skip
"""Architectures with recurrent layers of which llama.cpp keeps snapshots (`n_rs_seq`): the last few tokens of such a
cache can be dropped."""

FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""`general.file_type` -> the name people use."""

Value: TypeAlias = "int | float | bool | str | list[Any] | Array"

Read: TypeAlias = Callable[[int, int], bytes]  # `read(offset, length)`: the bytes there, fewer only where the data ends

_SCALARS: Final = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SHORT_ARRAY = 64  # arrays up to this length are read at once
_BLOCK, _LARGEST_BLOCK = 1 << 20, 1 << 23
# Far above every real file: the largest vocabularies make headers of 20 MB, the largest models list 3,000 tensors.
_HEADER_BYTES, _STRING_BYTES, _NAME_BYTES = 1 << 28, 1 << 24, 1 << 16
_MOST_VALUES, _MOST_TENSORS, _MOST_ELEMENTS = 1 << 16, 1 << 17, 1 << 23
DOWNLOAD_AGAIN = "Download the file again."


@dataclass(frozen=True, slots=True)
class Array:
    """A long metadata array left in the file; `Header.array` reads it."""

    type: int
    count: int
    offset: int  # where its elements start in the file
    size: int


def _opened(path: Path) -> BinaryIO:
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


class _HeaderReader:
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
        length = self.scalar(_U64, what)
        if length > most:
            self.corrupt(f"{what} claims a text of {length} bytes")
        return self.take(length, what)

    def string(self, what: str, most: int = _STRING_BYTES) -> str:
        return self.text(what, most).decode("utf-8", "replace")

    def skip_strings(self, count: int, what: str) -> None:
        """Skips so many strings, without a call for each: a vocabulary and its merges are 300,000 strings."""
        unpack, left = _U64.unpack_from, count
        while left:
            data, at = self._data, self._at
            last = len(data) - _U64.size  # where a length may begin that is here in full
            while left and at <= last:
                (length,) = unpack(data, at)
                if length > last - at:
                    break
                at += _U64.size + length
                left -= 1
            self._at = at
            if left:
                self.skip(self.scalar(_U64, what), what)
                left -= 1

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
        if kind == _STRING or kind in _SCALARS:
            value: Value = self.elements(kind, 1, what)[0]
            return value
        if kind != _ARRAY:
            self.corrupt(f"{what} has the unknown type {kind}")
        inner, count = self.scalar(_U32, what), self.scalar(_U64, what)
        if inner != _STRING and inner not in _SCALARS:
            self.corrupt(f"{what} is an array of the unknown type {inner}")
        smallest = 8 if inner == _STRING else _SCALARS[inner].size
        if count * smallest > self.size - self.offset or count > _MOST_ELEMENTS:
            self.corrupt(f"{what} claims {count} elements, more than the rest of the file could hold")
        if count <= _SHORT_ARRAY:
            return self.elements(inner, count, what)
        start = self.offset
        if inner == _STRING:
            self.skip_strings(count, what)
        else:
            self.skip(count * smallest, what)
        return Array(inner, count, start, self.offset - start)

    def skip(self, count: int, what: str) -> None:
        self.check(count, what)
        for start in range(0, count, _BLOCK):
            self.take(min(count - start, _BLOCK), what)


_KEPT = 8
"""Headers that stay in memory: loading asks several times for those of a pair, and a large vocabulary takes 0.2 s."""


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]  # elements per dimension, fastest first (ggml's order)
    type: str
    offset: int  # where its data starts in the file
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    path: Path
    file_bytes: int
    version: int
    metadata: dict[str, Value]  # long arrays are `Array`; use `array(key)`
    tensors: tuple[Tensor, ...] = field(repr=False)
    read: Read = field(repr=False, compare=False)  # reads the file again, for `array`

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
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @property
    def quantisation(self) -> str:
        """Such as "Q4_K_M": as stated, else the type that most bytes have."""
        stated = self.metadata.get("general.file_type")
        if isinstance(stated, int) and stated % 1024 in FILE_TYPES:
            return FILE_TYPES[stated % 1024]
        return next(iter(bytes_by_type([self])), "none")

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
        if isinstance(value, Array) and value.type == _STRING:
            reader = _HeaderReader(self.read, self.path, self.file_bytes, value.offset)
            return [reader.text(key) for _ in range(value.count)]
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
        """An integer of the architecture's own key ("block_count" for "llama.block_count"), 0 if absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else 0

    def numbers(self, key: str) -> list[int]:
        """Integers of the architecture's own key: one for each layer where the file lists them, else one; 0 for what
        is no integer, or absent."""
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
        return _HeaderReader(self.read, self.path, self.file_bytes, value.offset).take(value.size, key)

    def array(self, key: str) -> list[Any]:
        """All elements of an array value, empty if absent."""
        value = self.metadata.get(key)
        if not isinstance(value, Array):
            return value if isinstance(value, list) else []
        return _HeaderReader(self.read, self.path, self.file_bytes, value.offset).elements(value.type, value.count, key)


def bytes_by_type(parts: Sequence[Header]) -> dict[str, int]:
    """Bytes of all tensors per type, most first."""
    sizes: Counter[str] = Counter()
    for tensor in (tensor for part in parts for tensor in part.tensors):
        sizes[tensor.type] += tensor.size
    return dict(sizes.most_common())


def read_header(path: str | os.PathLike[str]) -> Header:
    """Reads and checks a file's header, and that every tensor it lists is inside the file."""
    path = Path(path)
    with _opened(path) as file:
        status = os.fstat(file.fileno())
    return _read_header(path, status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns))


@functools.lru_cache(maxsize=_KEPT)
def _read_header(path: Path, size: int, version: tuple[int, ...]) -> Header:
    """`version` tells the file from what the path held before."""

    def read(offset: int, length: int) -> bytes:
        with _opened(path) as file:
            try:
                file.seek(offset)
                return file.read(length)
            except OSError as error:
                raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from error

    return _header(_HeaderReader(read, path, size), read)


def read_header_from(read: Read, file_bytes: int, name: str) -> Header:
    """Reads a header through ranges, from front to back, each byte once: 1 MiB first, then twice as much each time.
    The header has all its arrays in memory: `read`, whose errors pass through, is not called again. `file_bytes`: of
    the whole file; `name` becomes `Header.path`."""
    data, block = bytearray(), _BLOCK

    def kept(offset: int, length: int) -> bytes:  # it is read front to back, its arrays later once more
        nonlocal block
        end = min(offset + length, file_bytes)
        while (have := len(data)) < end and have <= _HEADER_BYTES:
            wanted = min(block, file_bytes - have)
            fresh = read(have, wanted)
            if not fresh:
                break
            data.extend(fresh[:wanted])
            block = min(2 * block, _LARGEST_BLOCK)
        return bytes(data[offset:end])

    return _header(_HeaderReader(kept, Path(name), file_bytes), kept)


def _header(reader: _HeaderReader, read: Read) -> Header:
    path = reader.path
    if reader.size == 0:
        raise ModelFileError(f"{path} is empty.", DOWNLOAD_AGAIN)
    magic = reader.take(min(4, reader.size), "the GGUF mark")
    if magic != b"GGUF":
        begin = repr(magic.decode("ascii")) if magic.isascii() else f"the bytes {magic.hex(' ')}"
        raise ModelFileError(
            f"{path} is not a GGUF file (it starts with {begin}).", "localspec runs models in llama.cpp's GGUF format."
        )
    version = reader.scalar(_U32, "the version")
    if version not in (2, 3):
        if version & 0xFFFF == 0 and version:
            raise ModelFileError(f"{path} is a big-endian GGUF file.", "Convert it for little-endian machines.")
        raise ModelFileError(f"{path} is GGUF version {version}; versions 2 and 3 can be read.")
    n_tensors, n_values = reader.scalar(_U64, "the header"), reader.scalar(_U64, "the header")
    left = reader.size - reader.offset
    if n_values * 13 > left or n_tensors * 25 > left or n_values > _MOST_VALUES or n_tensors > _MOST_TENSORS:
        reader.corrupt(f"{n_tensors} tensors and {n_values} metadata values do not fit into {reader.size} bytes")
    metadata: dict[str, Value] = {}
    for index in range(n_values):
        key = reader.string(f"the name of metadata value {index}", _NAME_BYTES)
        if not key or key in metadata:
            reader.corrupt(f"metadata value {index} has {'no name' if not key else f'the name {key!r} of another'}")
        metadata[key] = reader.value(key)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 30:
        reader.corrupt(f"its alignment is {str(alignment)[:40]}, not a power of 2")
    return Header(path, reader.size, version, metadata, _tensors(reader, n_tensors, alignment), read)


def _tensors(reader: _HeaderReader, count: int, alignment: int) -> tuple[Tensor, ...]:
    """The tensor list; every tensor must lie within the file, in order and without gaps but padding."""
    found: dict[str, tuple[tuple[int, ...], str, int, int, int]] = {}
    for index in range(count):
        what = f"the description of tensor {index}"
        name = reader.string(what, _NAME_BYTES)
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
        label, block, block_bytes = TENSOR_TYPES[kind]
        found[name] = (shape, label, block, offset, math.prod(shape) // block * block_bytes)
    start = -(-reader.offset // alignment) * alignment
    tensors, expected = [], 0
    for name, (shape, label, block, offset, size) in found.items():
        row = shape[0] if shape else 1
        if row % block:
            reader.corrupt(f"rows of tensor {name!r} have {row} elements, no multiple of {block} ({label})")
        if offset != expected:
            reader.corrupt(f"tensor {name!r} starts at {offset} of the data instead of {expected}")
        missing = start + offset + size - reader.size
        if missing > 0:
            if missing > 1 << 50:
                reader.corrupt(f"tensor {name!r} claims {size} bytes")
            missing = start + max(at + count for *_, at, count in found.values()) - reader.size
            raise ModelFileError(
                f"{reader.path} is truncated: {missing} bytes are missing (tensor {name!r} ends beyond the file).",
                DOWNLOAD_AGAIN,
            )
        tensors.append(Tensor(name, shape, label, start + offset, size))
        expected = -(-(offset + size) // alignment) * alignment
    return tuple(tensors)


# Models in several files: NAME-00001-of-00003.gguf, the first of which describes the model.

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})", re.DOTALL)


class Split(NamedTuple):
    stem: str  # name of the model, without part and .gguf
    part: int  # from 1
    total: int


def split_of(name: str) -> Split:
    """A model in one file is part 1 of 1."""
    stem = name.removesuffix(".gguf")
    found = _PART.fullmatch(stem)
    return Split(found[1], int(found[2]), int(found[3])) if found else Split(stem, 1, 1)


def parts_of(path: Path) -> list[Path]:
    """Where all files of a model should be, the first part first, by the name of any of them."""
    split = split_of(path.name)
    if split.total < 2:
        return [path]
    names = (f"{split.stem}-{part:05d}-of-{split.total:05d}.gguf" for part in range(1, split.total + 1))
    return [path.with_name(name) for name in names]


def present_parts(path: Path) -> list[Path]:
    """`parts_of`, all of which are there. Raises ModelFileError: one is missing."""
    parts = parts_of(path)
    for part in parts:
        if len(parts) > 1 and not part.exists():
            raise ModelFileError(
                f"{part} is missing; {path.name} is one of {len(parts)} parts.", "All parts belong in one folder."
            )
    return parts


def first_part(path: Path) -> Path:
    """The file that describes a model, by the name of any of its files. A whole or damaged file is its own."""
    if split_of(path.name).part == 1:
        return path
    try:
        own = read_header(path)
    except ModelFileError:
        return path  # opening it says what is wrong with it
    return present_parts(path)[0] if _parts_in(own) > 1 else path


def read_parts(path: Path) -> list[Header]:
    """Headers of all files of a model, the first part first; the file's own header says whether there are more.
    Raises ModelFileError: a file is missing, damaged, or not called as parts are."""
    own = read_header(path)
    count = _parts_in(own)
    if count < 2:
        return [own]
    named = split_of(path.name).total
    if named != count:
        raise ModelFileError(
            f"{path} is one of {count} parts, and its name does not say so.",
            f"All parts belong in one folder, as NAME-00001-of-{count:05d}.gguf and so on.",
        )
    return [own if part == path else read_header(part) for part in present_parts(path)]


def _parts_in(header: Header) -> int:
    """Files of the model that a header belongs to."""
    count = header.metadata.get("split.count")
    return count if isinstance(count, int) and count > 0 else 1
