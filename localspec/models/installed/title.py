"""What people call a model: as the list does, or by the name inside its file if that is like the file's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from localspec import paths
from localspec.errors import LocalspecError
from localspec.gguf import read_header
from localspec.models.installed.store import Entry, Store


def title_of(target: Path, store: Store | None = None, named: str = "") -> str:
    """What to call the model of this file.

    Args:
        target: its file, or the first part of a split one.
        store: what is in the list; None = the user's.
        named: what the user calls it; of several names in the list it is this one.
    """
    real = paths.real(target)
    entries = (Store() if store is None else store).entries()
    listed = [entry.name for entry in entries if not entry.fault and paths.real(entry.path) == real]
    if listed:
        return named if named in listed else listed[0]
    own = _name(target)
    return own if own and _letters(own) in _letters(target.stem) else target.stem


def _name(path: Path) -> str:
    """The name inside a file, which may be anything: "Smollm2 135M 8k Lc100K Mix1 Ep2"; "" = it has none."""
    try:
        return " ".join(read_header(path).text("general.name").split())
    except LocalspecError:
        return ""


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def same_files(entry: Entry, entries: Iterable[Entry]) -> list[str]:
    """Names of other entries with the same bytes: one model that has several names."""
    own = tuple(file.sha256 for file in entry.files)
    return [one.name for one in entries if one.name != entry.name and tuple(file.sha256 for file in one.files) == own]


def twin_sentence(entry: Entry, entries: Iterable[Entry]) -> str:
    """That a model has other names here, too; "" = it has none."""
    same = same_files(entry, entries)
    return f"{entry.name} is the same file as {', '.join(same)}: one model with {len(same) + 1} names." if same else ""
