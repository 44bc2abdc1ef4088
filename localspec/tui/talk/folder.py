"""The text files of a folder that go along with a message: what `.gitignore` names stays out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.chat.archive.message import Attachment
from localspec.chat.text_file import read_text
from localspec.errors import LocalspecError, UsageError

MOST_FILES = 500
"""Files of a folder that can be attached at once."""
LARGEST = 4 * 1024 * 1024
"""Bytes of all of them together: more than any context here holds."""
_SKIPPED = {"node_modules", "__pycache__", "venv", "build", "dist", "target"}
"""Folders that hold what is made or fetched, named or not."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A line of a `.gitignore`."""

    pattern: re.Pattern[str]
    """Of a path below the file's folder."""
    keeps: bool
    """It begins with "!": what it names is not left out."""
    folders: bool
    """It ends with "/": only folders are meant."""


class Ignored:
    """What the `.gitignore` of one folder names."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._rules = [_rule(line.rstrip()) for line in lines if line.strip() and not line.startswith("#")]

    def names(self, path: str, is_folder: bool) -> bool | None:
        """Whether a path below the folder is left out; None = nothing is said of it. The last line that fits counts."""
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders) and rule.pattern.fullmatch(path):
                return not rule.keeps
        return None


def _rule(line: str) -> _Rule:
    keeps = line.startswith("!")
    line = line[keeps:]
    folders = line.endswith("/")
    line = line.rstrip("/")
    anchored = "/" in line
    return _Rule(re.compile(("" if anchored else "(?:.*/)?") + _pattern(line.lstrip("/"))), keeps, folders)


def _pattern(glob: str) -> str:
    """A regular expression for a path: `*` and `?` stop at a slash, `**` does not."""
    signs = {"/**/": "/(?:.*/)?", "**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(/\*\*/|\*\*/|/\*\*|\*\*|\*|\?|\[[^]]+\])", glob)
    return "".join(
        signs.get(part) or (part.replace("[!", "[^") if part.startswith("[") else re.escape(part)) for part in parts
    )


def attached(folder: Path, name: str) -> tuple[Attachment, ...]:
    """The text files below a folder, by path, as `name/path`; hidden and binary ones are left out.

    Raises:
        UsageError: there are none, or too many, or they are too large together.
    """
    found, size = list[Attachment](), 0
    for path in _below(folder, folder, []):
        try:
            if path.stat().st_size > LARGEST:
                continue
            content = read_text(path)
        except (LocalspecError, OSError):
            continue  # no text
        size += len(content)
        found.append(Attachment(f"{name.rstrip('/')}/{path.relative_to(folder)}", content))
        if len(found) > MOST_FILES or size > LARGEST:
            raise UsageError(
                f"{name} has more than {MOST_FILES} text files or {LARGEST >> 20} MB of them.", "Name a smaller folder."
            )
    if not found:
        raise UsageError(f"{name} has no text files to attach.")
    return tuple(found)


def _below(top: Path, place: Path, above: list[tuple[Path, Ignored]]) -> Iterator[Path]:
    """Files, what is left out aside; `above`: the rules of the folders on the way."""
    rules = [*above, (place, Ignored(_lines(place / ".gitignore")))]
    try:
        with os.scandir(place) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name.startswith(".") or (is_folder and entry.name in _SKIPPED) or _left_out(rules, entry, is_folder):
            continue
        if is_folder:
            yield from _below(top, Path(entry.path), rules)
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def _left_out(rules: list[tuple[Path, Ignored]], entry: os.DirEntry[str], is_folder: bool) -> bool:
    for place, ignored in reversed(rules):  # the nearest file counts
        said = ignored.names(Path(entry.path).relative_to(place).as_posix(), is_folder)
        if said is not None:
            return said
    return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
