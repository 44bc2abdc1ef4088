"""What people call a model: the name inside its file, or the file's own where two models say the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from localspec import paths
from localspec.errors import LocalspecError
from localspec.gguf import read_header
from localspec.models.installed.store import Entry, Store


def title_of(target: Path, store: Store | None = None) -> str:
    """What to call the model of this file.

    Args:
        target: its file, or the first part of a split one.
        store: of the models that it must be told apart from; None = the user's.
    """
    own = _name(target)
    if not own:
        return target.stem
    others = (entry.path for entry in (Store() if store is None else store).entries() if not entry.fault)
    real = paths.real(target)
    return target.stem if any(_name(other) == own for other in others if paths.real(other) != real) else own


def same_files(entry: Entry, entries: Iterable[Entry]) -> list[str]:
    """Names of other entries with the same bytes: one model that has several names."""
    own = tuple(file.sha256 for file in entry.files)
    return [one.name for one in entries if one.name != entry.name and tuple(file.sha256 for file in one.files) == own]


def twin_sentence(entry: Entry, entries: Iterable[Entry]) -> str:
    """That a model has other names here, too; "" = it has none."""
    same = same_files(entry, entries)
    return f"{entry.name} is the same file as {', '.join(same)}: one model with {len(same) + 1} names." if same else ""


def _name(path: Path) -> str:
    try:
        return " ".join(read_header(path).text("general.name").split())
    except LocalspecError:
        return ""
