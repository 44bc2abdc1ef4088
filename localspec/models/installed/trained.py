"""Lists a trained draft model with its target, so that it drafts from then on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from localspec import paths
from localspec.claim import is_held
from localspec.errors import ModelError, UsageError
from localspec.gguf.split import split_of
from localspec.models.installed.adopt import adopt
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.installed import entry_of, is_trained, knows
from localspec.models.installed.store import Store

LOCK = "lock"
"""The file of a work folder by which a second run is kept out."""


def work_folder(name: str) -> Path:
    """Where answers, checkpoint and result of a draft model lie while it is trained, and afterwards."""
    return paths.data_dir() / "training" / name


def size_of(name: str) -> int:
    """Bytes of what training it left."""
    return sum(file.stat().st_size for file in work_folder(name).rglob("*") if file.is_file())


def is_begun(name: str) -> bool:
    """Whether training it left something."""
    folder = work_folder(name)  # an imported model may be called ".."
    return folder.is_dir() and paths.real(folder).parent == paths.real(work_folder("x")).parent


def forget(name: str) -> int:
    """Removes what training it left; the bytes that are given back.

    Raises:
        ModelError: it is being trained.
    """
    if not is_begun(name):
        return 0
    if is_held(work_folder(name) / LOCK):
        raise ModelError(f"{name!r} is being trained by another process.", "End it first.")
    count = size_of(name)
    shutil.rmtree(work_folder(name), ignore_errors=True)
    return count


def check_name(name: str, store: Store) -> None:
    """Whether a draft model may be called so.

    Raises:
        UsageError: a model that was not trained here is called so, or it cannot be the name of a file.
    """
    catalog = Catalog.load()
    if not name or name.startswith((".", "-")) or not name.isprintable() or "/" in name or "\\" in name:
        raise UsageError(f"--out is {name!r}; it must be a name, without slashes.")
    entry = next((one for one in store.entries() if one.name == name), None)
    if name in catalog.pairs or name in catalog.models or (entry is not None and not is_trained(entry)):
        raise UsageError(f"--out is {name!r}, which another model is called.", "Give another name.")


def keep(target: Path, name: str, file: Path, store: Store, drafts: bool) -> str:
    """Installs a copy of the trained file.

    Args:
        target: what it was trained for.
        name: what it is called.
        file: the trained file.
        store: the list of what is installed.
        drafts: whether it becomes the target's draft model.

    Returns:
        A sentence: how it is used from now on.

    Raises:
        ModelError, UsageError: as `adopt`.
    """
    if any(entry.name == name for entry in store.entries()):
        store.remove(name)
    adopt(file, store, name=name, role="draft", copy=True)
    bundled = any(one.bundled and paths.real(one.path) == paths.real(target) for one in Catalog.load().models.values())
    entry = entry_of(target, store)
    if bundled or not drafts:
        if entry is not None and entry.draft == name:
            store.add(replace(entry, draft=""))
        return f"`--draft {name}` drafts with it."
    if entry is None:
        entry = adopt(target, store, name=_free_name(target, name))
    store.add(replace(entry, draft=name))
    return f"It drafts for {entry.name} from now on."


def _free_name(target: Path, draft: str) -> str:
    """What a target that is not installed is called: as its file, where nothing else is called so."""
    name = split_of(target.name).stem
    return f"{draft}-target" if knows(name) else name
