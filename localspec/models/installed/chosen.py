"""The model that answers where none is named: the one that was chosen, else the newest one, else the bundled pair."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from localspec import paths
from localspec.errors import LocalspecError, ModelFileError, UsageError
from localspec.models.installed.catalog import DEFAULT_PAIR, Catalog
from localspec.models.installed.installed import find, knows
from localspec.models.installed.store import Store

VARIABLE = "LOCALSPEC_MODEL"
"""Environment variable with the name or file of a model; it beats what was chosen."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model by name or file, and a draft model or head that was chosen with it."""

    target: str | None
    """None = the bundled pair."""
    draft: str | None = None
    fault: str = ""
    """Why what was chosen cannot answer, who does, and what to do, in sentences; the target is another one then."""


def choose(target: str, draft: str | None = None) -> None:
    """Keeps a choice for later starts. The bundled pair can be chosen, too. A file is kept with its whole path.

    Raises:
        ModelError, ModelFileError: as `find`; or there is no such file.
        UsageError: the choice cannot be written.
    """
    _check(target, Store(), Catalog.load())
    target = whole(target)
    try:
        paths.write_whole(_file(), json.dumps({"target": target, "draft": draft}) + "\n")
    except OSError as error:
        raise UsageError(f"The choice cannot be saved to {_file()}: {error.strerror}.") from None


def whole(target: str) -> str:
    """What names a target from any folder: its name, or the whole path of a file."""
    path = paths.typed(target)
    return str(paths.real(path)) if os.path.isfile(path) and not knows(target) else target


def forget() -> None:
    """Leaves the choice to localspec again.

    Raises:
        UsageError: the file cannot be removed.
    """
    try:
        _file().unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{_file()} cannot be removed: {error.strerror}.") from None


def default(store: Store | None = None, catalog: Catalog | None = None) -> Chosen:
    """The model that answers where none is named.

    Args:
        store: None = the user's.
        catalog: None = the shipped one with the user's additions.

    Raises:
        ModelError, ModelFileError: `LOCALSPEC_MODEL` names no model.
    """
    store = Store() if store is None else store
    catalog = Catalog.load() if catalog is None else catalog
    named = os.environ.get(VARIABLE, "").strip()
    if named:
        try:
            _check(named, store, catalog)
        except LocalspecError as error:
            raise type(error)(f"{VARIABLE}: {error.message}", error.hint) from None
        return Chosen(named)
    kept, fault, hint = _kept(), "", ""
    if kept is not None and kept.target is not None:
        try:
            _check(kept.target, store, catalog)
            return kept
        except LocalspecError as error:
            fault = f"The model you chose cannot answer: {error.message}"
            hint = error.hint or "`localspec use NAME` chooses another."
    newest = max(
        (entry for entry in store.entries() if entry.role == "target" and not entry.fault),
        key=lambda entry: entry.added,
        default=None,
    )
    found = Chosen(None if newest is None else newest.name)
    return replace(found, fault=fault and f"{fault} {called(found)} answers. {hint}")


def called(chosen: Chosen) -> str:
    """What a list calls it."""
    return chosen.target or DEFAULT_PAIR


def _kept() -> Chosen | None:
    """What was chosen; None = nothing, or nothing that can be read."""
    try:
        kept = json.loads(paths.read_own(_file()))
        target, draft = kept["target"], kept.get("draft")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(target, str) or not isinstance(draft, str | None):
        return None
    return Chosen(target, draft)


def _check(name: str, store: Store, catalog: Catalog) -> None:
    """Refuses what `find` does not know, and a file that is not there."""
    target, _ = find(name, store, catalog)
    if not os.path.isfile(target):
        raise ModelFileError(f"{target} does not exist.")


def _file() -> Path:
    return paths.config_dir() / "model.json"
