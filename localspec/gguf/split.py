"""Models in several files: NAME-00001-of-00003.gguf, the first of which describes the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from localspec.gguf import Header, read_header

_MOST_PARTS = 1000
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


def read_parts(path: Path) -> list[Header]:
    """Headers of all files of a model, the first part first; the file's own header says whether there are more.

    Raises:
        ModelFileError: a file is missing or damaged.
    """
    own = read_header(path)
    count = own.metadata.get("split.count")
    if not isinstance(count, int) or count < 2:
        return [own]
    return [own if part == path else read_header(part) for part in parts_of(path)[:_MOST_PARTS]]
