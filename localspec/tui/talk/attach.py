"""Text files that go along with a message: `@path` in the input, with suggestions while it is typed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from localspec import paths
from localspec.chat.archive.message import Attachment
from localspec.chat.text_file import read_text
from localspec.errors import UsageError
from localspec.paths import typed
from localspec.tui.talk.folder import Rules, entries, rules_above

LARGEST = 512 * 1024
"""Bytes of a file that can be attached: more would fill any context here many times over."""
_MOST_FILES, _DEEPEST = 4_000, 6
_MENTION = re.compile(r"(?:^|(?<=\s))@(\"[^\"]+\"|\S+)")


def attached(text: str, folder: Path | None = None) -> tuple[Attachment, ...]:
    """The files a message mentions as `@path` or `@"path with spaces"`; other words after an @ are only words.

    Raises:
        UsageError: a mentioned file exists and cannot be attached; says which and why.
    """
    folder = Path.cwd() if folder is None else folder
    found: dict[str, Attachment] = {}
    for mention in _MENTION.findall(text):
        name = mention.strip('"')
        for candidate in (name, name.rstrip(".,;:!?)")):
            path = folder / typed(candidate)
            if os.path.isfile(path):
                found.setdefault(candidate, Attachment(candidate, _read(path)))
                break
    return tuple(found.values())


def folders(text: str, folder: Path | None = None) -> list[str]:
    """The folders that a message mentions as `@path`."""
    folder = Path.cwd() if folder is None else folder
    names = (mention.strip('"') for mention in _MENTION.findall(text))
    return list(dict.fromkeys(name for name in names if os.path.isdir(folder / typed(name))))


def mentioned(text: str, name: str) -> bool:
    """Whether an attachment came of a word of this message: a file or a folder after an @."""
    words = [mention.strip('"').rstrip(".,;:!?)") for mention in _MENTION.findall(text)]
    return name in words or any(word and name.startswith(word.rstrip("/") + "/") for word in words)


def _read(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UsageError(f"{path} has {size:,} bytes; files of up to {LARGEST:,} can be attached.")
        return read_text(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def files(folder: Path) -> list[str]:
    """Paths of files and folders below a folder, relative to it, shallow ones first; a folder's ends with a slash.

    What is hidden, made, or named by `.gitignore` is left out. Takes long in a large folder: call it from a thread.
    """
    folder = paths.real(folder)
    found, level = list[str](), [(folder, rules_above(folder))]
    for _ in range(_DEEPEST):
        below = list[tuple[Path, Rules]]()
        for place, above in level:
            inside, rules = entries(place, above)
            found += [f"{os.path.relpath(place / name, folder)}{'/' * is_folder}" for name, is_folder in inside]
            below += [(place / name, rules) for name, is_folder in inside if is_folder]
            if len(found) >= _MOST_FILES:
                return found[:_MOST_FILES]
        level = below
    return found


def matching(known: Sequence[str], word: str, limit: int = 8) -> list[str]:
    """Paths for what is typed after the @: a folder's content for `~`, `/` and `..`, else the best of `known`."""
    if word.startswith(("~", "/", "..")):
        return _listing(word, limit)
    word = word.lower()
    ranked = ((_rank(path.lower(), word), index) for index, path in enumerate(known))
    best = sorted(pair for pair in ranked if pair[0] is not None)
    return [known[index] for _, index in best[:limit]]


def _listing(word: str, limit: int) -> list[str]:
    start, _, name = word.rpartition("/")
    if not start and not word.startswith("/"):
        return [word + "/"] if word in ("~", "..") else []
    place = paths.real(typed(start + "/"))
    inside, _rules = entries(place, rules_above(place))
    found = [one for one, _is_folder in inside if one.startswith(name)][:limit]
    return [f"{start}/{one}{'/' if os.path.isdir(place / one) else ''}" for one in found]


def _rank(path: str, word: str) -> tuple[int, int] | None:
    """Smaller is better; None = no match: the name begins so, contains it, the path contains it, letters in order."""
    name = path.rstrip("/").rpartition("/")[2]
    if name.startswith(word):
        return 0, len(path)
    if word in name:
        return 1, len(path)
    if word in path:
        return 2, len(path)
    letters = iter(path)
    return (3, len(path)) if all(letter in letters for letter in word) else None
