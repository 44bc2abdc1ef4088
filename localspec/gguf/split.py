"""Models in several files: NAME-00001-of-00003.gguf, the first of which describes the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from localspec.errors import ModelFileError
from localspec.gguf import Header, read_header

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})", re.DOTALL)


class Split(NamedTuple):
    """What the name of a part says."""

    stem: str
    """Name of the model, without part and .gguf."""
    part: int
    """From 1."""
    total: int


def split_of(name: str) -> Split:
    """A file's name taken apart; a model in one file is part 1 of 1."""
    stem = name.removesuffix(".gguf")
    found = _NAME.fullmatch(stem)
    return Split(found[1], int(found[2]), int(found[3])) if found else Split(stem, 1, 1)


def parts_of(path: Path) -> list[Path]:
    """Where all files of a model should be, the first part first, by the name of any of them."""
    split = split_of(path.name)
    if split.total < 2:
        return [path]
    names = (f"{split.stem}-{part:05d}-of-{split.total:05d}.gguf" for part in range(1, split.total + 1))
    return [path.with_name(name) for name in names]


def present_parts(path: Path) -> list[Path]:
    """`parts_of`, all of which are there.

    Raises:
        ModelFileError: one is missing.
    """
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
    return present_parts(path)[0] if _count(own) > 1 else path


def read_parts(path: Path) -> list[Header]:
    """Headers of all files of a model, the first part first; the file's own header says whether there are more.

    Raises:
        ModelFileError: a file is missing, damaged, or not called as parts are.
    """
    own = read_header(path)
    count = _count(own)
    if count < 2:
        return [own]
    named = split_of(path.name).total
    if named != count:
        raise ModelFileError(
            f"{path} is one of {count} parts, and its name does not say so.",
            f"All parts belong in one folder, as NAME-00001-of-{count:05d}.gguf and so on.",
        )
    return [own if part == path else read_header(part) for part in present_parts(path)]


def _count(header: Header) -> int:
    """Files of the model that a header belongs to."""
    count = header.metadata.get("split.count")
    return count if isinstance(count, int) and count > 0 else 1
