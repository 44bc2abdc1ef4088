"""Text files and folders that go along with a message, as `@path`; and chats to files and back."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pathspec import GitIgnoreSpec

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Attachment, Chat
from localspec.chat.text_file import LARGEST, read_text
from localspec.errors import LocalspecError, UsageError, explained
from localspec.paths import typed

_MOST_FILES, _DEEPEST = 4_000, 6
_MENTION = re.compile(r"(?:^|(?<=\s))@(\"[^\"]+\"|\S+)")


def attached(text: str, folder: Path | None = None) -> tuple[Attachment, ...]:
    """The files a message mentions as `@path` or `@"path with spaces"`; other words after an @ are only words."""
    found: dict[str, Attachment] = {}
    for name in _mentions(text):
        for candidate in (name, name.rstrip(".,;:!?)")):
            path = (folder or Path.cwd()) / typed(candidate)
            if not os.path.isfile(path):
                continue
            with explained(f"{path} cannot be read", UsageError):
                if (size := path.stat().st_size) > LARGEST:
                    raise UsageError(f"{path} has {size:,} bytes; files of up to {LARGEST:,} can be attached.")
                found.setdefault(candidate, Attachment(candidate, read_text(path)))
            break
    return tuple(found.values())


def resources(text: str, servers: Collection[str]) -> list[str]:
    """What a message mentions as `@server:uri`, of these servers."""
    words = [word.rstrip(".,;:!?" + ")" * ("(" not in word)) for word in _mentions(text)]
    return [one for one in dict.fromkeys(words) if one.split(":")[0] in servers and one.count(":") > 1]


def _mentions(text: str) -> list[str]:
    return [mention.strip('"') for mention in _MENTION.findall(text)]


def folders(text: str) -> list[str]:
    return list(dict.fromkeys(name for name in _mentions(text) if os.path.isdir(Path.cwd() / typed(name))))


def mentioned(text: str, name: str) -> bool:
    """Whether an attachment came of a word of this message: a file or a folder after an @."""
    words = [one for word in _mentions(text) for one in (word, word.rstrip(".,;:!?)"))]
    return name in words or any(word and name.startswith(word.rstrip("/") + "/") for word in words)


def files(folder: Path) -> list[str]:
    """Paths of files and folders below a folder, relative to it, shallow ones first; a folder's ends with a slash. What
    is hidden, made, or named by `.gitignore` is left out. Takes long in a large folder: call it from a thread."""
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
        start, _, name = word.rpartition("/")
        if not start and not word.startswith("/"):
            return [word + "/"] if word in ("~", "..") else []
        place = paths.real(typed(start + "/"))
        found = [one for one, _ in entries(place, rules_above(place))[0] if one.startswith(name)][:limit]
        return [f"{start}/{one}{'/' if os.path.isdir(place / one) else ''}" for one in found]
    word = word.lower()
    ranked = ((_rank(path.lower(), word), index) for index, path in enumerate(known))
    best = sorted(pair for pair in ranked if pair[0] is not None)
    return [known[index] for _, index in best[:limit]]


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


MOST_FILES = 500  # files of a folder that can be attached at once
LARGEST_FOLDER = 4 * 1024 * 1024  # bytes of all of them together: more than any context here holds
_SKIPPED = {"node_modules", "__pycache__", "venv", "build", "dist", "target"}
"""Folders that hold what is made or fetched, named or not."""
_MOST_STARS = 3  # in one part of a line's path: with more, looking for a match takes seconds for some names


class Ignored:
    """What the `.gitignore` of one folder names. A line that git cannot use is skipped, as git does."""

    def __init__(self, lines: Sequence[str]) -> None:
        usable = list[str]()
        for line in map(_quick, lines):
            with suppress(ValueError, re.error):
                GitIgnoreSpec.from_lines([line])
                usable.append(line)
        self._spec = GitIgnoreSpec.from_lines(usable)

    def names(self, path: str, is_folder: bool) -> bool | None:
        """Whether a path below the folder is left out; None = nothing is said of it. The last line that fits counts."""
        return self._spec.check_file(path + "/" * is_folder).include


Rules = list[tuple[Path, Ignored]]  # of each folder on the way, the nearest one last


def _quick(line: str) -> str:
    """A line that means the same, and with many stars rather leaves out too much than too little."""
    parts = [re.split(r"(?<!\\)\*+", part) if part.strip("*") else [part[:2]] for part in line.split("/")]
    if line.startswith("!") and any(len(part) > _MOST_STARS + 1 for part in parts):
        return ""
    return "/".join("*".join(part if len(part) <= _MOST_STARS + 1 else [*part[:_MOST_STARS], ""]) for part in parts)


def attached_below(folder: Path, name: str) -> tuple[Attachment, ...]:
    """The text files below a folder, by path, as `name/path`; hidden and binary ones are left out. Raises UsageError:
    there are none, or too many, or they are too large together."""
    found, size = list[Attachment](), 0
    folder = paths.real(folder)
    for path in _below(folder, rules_above(folder)):
        try:
            if path.stat().st_size > LARGEST_FOLDER:
                continue
            content = read_text(path)
        except (LocalspecError, OSError):
            continue  # no text
        size += len(content)
        found.append(Attachment(f"{name.rstrip('/')}/{path.relative_to(folder)}", content))
        if len(found) > MOST_FILES or size > LARGEST_FOLDER:
            raise UsageError(
                f"{name} has more than {MOST_FILES} text files or {LARGEST_FOLDER >> 20} MB of them.",
                "Name a smaller folder.",
            )
    if not found:
        raise UsageError(f"{name} has no text files to attach.")
    return tuple(found)


def rules_above(folder: Path) -> Rules:
    """Those of the folders above that are of the same repository; none if they name the folder itself."""
    places = [folder, *folder.parents]
    top = next((index for index, place in enumerate(places) if os.path.exists(place / ".git")), 0)
    found = [(place, Ignored(_lines(place / ".gitignore"))) for place in reversed(places[1 : top + 1])]
    return [] if _left_out(found, str(folder), True) else found  # it was named nevertheless


def entries(place: Path, above: Rules) -> tuple[list[tuple[str, bool]], Rules]:
    """What is in a folder, by name, with whether it is a folder, and the rules below it. What is hidden, ignored or
    made stays out, and so does all of a folder that cannot be read. `above`: the rules of the folders on the way."""
    rules = [*above, (place, Ignored(_lines(place / ".gitignore")))]
    try:
        with os.scandir(place) as scanned:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scanned]
    except OSError:
        return [], rules
    kept = [
        (name, is_folder)
        for name, is_folder in sorted(found)
        if not name.startswith(".")
        and not (is_folder and name in _SKIPPED)
        and not _left_out(rules, str(place / name), is_folder)
    ]
    return kept, rules


def _below(place: Path, above: Rules) -> Iterator[Path]:
    """Files, what is left out aside; `above`: the rules of the folders on the way."""
    found, rules = entries(place, above)
    for name, is_folder in found:
        path = place / name
        if is_folder:
            yield from _below(path, rules)
        elif os.path.isfile(path) and not os.path.islink(path):
            yield path


def _left_out(rules: Rules, path: str, is_folder: bool) -> bool:
    for place, ignored in reversed(rules):  # the nearest file counts
        said = ignored.names(Path(path).relative_to(place).as_posix(), is_folder)
        if said is not None:
            return said
    return False


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        if path.is_file():
            return path.read_text(encoding="utf-8-sig", errors="surrogateescape").split("\n")
    return []


Kind = Literal["markdown", "json", "html"]
KINDS: dict[str, Kind] = {".md": "markdown", ".json": "json", ".html": "html"}


def target(title: str, file: str) -> tuple[Path, Kind]:
    """Where an export goes, and as what: the file that was named, or one of the chat's title in this folder. Raises
    UsageError: the name's ending is none of `KINDS`."""
    path = typed(file) if file else Path(re.sub(r"[^\w-]+", "-", title.lower()).strip("-")[:60] + ".md")
    if path.suffix not in KINDS:
        raise UsageError(f"{path.name} ends in {path.suffix or 'nothing'}; exports end in {', '.join(KINDS)}.")
    if not path.stem:
        path = path.with_name("chat.md")
    return path, KINDS[path.suffix]


def export(archive: Archive, chat: Chat, file: str) -> Coroutine[Any, Any, str]:
    """Writes a chat to a file that does not exist yet; the result says where."""
    path, kind = target(chat.title or "chat", file)

    def write() -> str:
        text = archive.export([chat.id], kind)
        try:
            with path.open("x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise UsageError(f"{path} exists already; name another file: /export FILE.") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
        return f"Written to {path}."

    return asyncio.to_thread(write)
