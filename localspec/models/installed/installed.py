"""Where the files of a name are: catalogue, index and plain paths; and the model that answers where none is named: the
one that was chosen, else the newest one, else the bundled pair."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localspec import paths
from localspec.errors import LocalspecError, ModelError, ModelFileError, UsageError
from localspec.gguf import first_part, read_header
from localspec.methods import FROM_FILES
from localspec.models.facts.heads import draft_kind
from localspec.models.facts.pairing import TRAINED_FOR
from localspec.models.hub.names import parse
from localspec.models.installed.catalog import DEFAULT_PAIR, Catalog
from localspec.models.installed.store import Entry, Store
from localspec.paths import sha256_of, typed

NO_DRAFT = "none"  # the word, in place of a draft model's name, for none: not the one that goes with the target either
Files = tuple[Path, Path | None]  # target, and the draft that goes with it


def find(name: str | os.PathLike[str] | None, store: Store | None = None, catalog: Catalog | None = None) -> Files:
    """Files of target and draft for a pair's or model's name (None = the bundled pair), `user/repo[:quant]` once pulled
    or a path. `store`, `catalog`: None = the user's, and the shipped one with the user's additions. Raises ModelError:
    no such name, a server's model, or it is not installed; the hint is the command that installs it."""
    text = DEFAULT_PAIR if name is None else os.fspath(name)
    catalog = Catalog.load() if catalog is None else catalog
    store = Store() if store is None else store
    catalog.check_local(text)
    if (pair := catalog.pairs.get(text)) is not None:
        target = _model(pair.target, text, store, catalog)
        return target, _model(pair.draft, text, store, catalog) if pair.method in FROM_FILES else None
    if text in catalog.models and catalog.models[text].bundled:
        return catalog.models[text].path, None
    entry = store.find(text)  # before files: a name must not mean something else in another folder
    if entry is not None:
        draft = store.find(entry.draft) if entry.draft else None
        return _sound(entry), draft.path if draft is not None and not draft.fault and can_draft(draft) else None
    path = typed(text)
    if os.path.isfile(path):
        file = first_part(path)
        entry = entry_of(file, store)
        draft = store.find(entry.draft) if entry is not None and entry.draft else None
        return file, draft.path if draft is not None and is_trained(draft) else None  # what was made for this very file
    if text not in catalog.models and (
        os.path.exists(path) or (text.endswith(".gguf") and parse(text) is None) or path.is_absolute()
    ):
        return path, None  # opening it says what is wrong with it
    if text in catalog.models or parse(text) is not None:
        raise ModelError(f"{text!r} is not installed.", f"Try: localspec pull {text}")
    hint = catalog.nearest(text, (entry.name for entry in store.entries()))
    raise ModelError(f"There is no model, pair or file called {text!r}.", hint)


def _model(name: str, pair: str, store: Store, catalog: Catalog) -> Path:
    if (listed := catalog.models[name]).bundled:
        return listed.path
    if (entry := store.find(name)) is None:
        raise ModelError(f"{name!r}, of the pair {pair!r}, is not installed.", f"Try: localspec pull {pair}")
    return _sound(entry)


def entry_of(file: Path, store: Store) -> Entry | None:
    """The installed model that a file is; None = it is not installed."""
    whole = paths.real(file)
    return next((one for one in store.entries() if paths.real(one.path) == whole and one.role == "target"), None)


def is_trained(entry: Entry) -> bool:
    """Whether it is a sound draft model of `localspec train`."""
    try:
        return not entry.fault and bool(read_header(entry.path).text(TRAINED_FOR))
    except LocalspecError:
        return False


def find_one(name: str | os.PathLike[str], store: Store | None = None, catalog: Catalog | None = None) -> Path:
    """The file of one model, as for `--draft`; raises as `find`."""
    return find(name, store, catalog)[0]


def usable(catalog: Catalog | None = None) -> dict[str, float]:
    """Every name that `find` has sound files for, and when they were installed in seconds since 1970 (0 = bundled)."""
    catalog = Catalog.load() if catalog is None else catalog
    found = {name: 0.0 for name, model in catalog.models.items() if model.bundled}
    sound = [entry for entry in Store().entries() if not entry.fault]
    drafts = found | {entry.name: entry.added for entry in sound}
    found |= {entry.name: entry.added for entry in sound if entry.role != "head"}
    pairs = {
        name: max(found[pair.target], drafts.get(pair.draft, 0.0))
        for name, pair in catalog.pairs.items()
        if pair.target in found and (pair.draft in drafts or pair.method not in FROM_FILES)
    }
    return pairs | found


def names() -> list[str]:
    """What can be named as the model that answers: those of `usable`, and servers' models of models.toml, by name."""
    catalog = Catalog.load()
    return sorted({*usable(catalog), *catalog.endpoints})


def name_of(sha256: str) -> str:
    """What a file with this checksum is called here, be it installed, bundled or listed; "" = unknown."""
    for entry in Store().entries():
        if any(file.sha256 == sha256 for file in entry.files):
            return entry.name
    for name, model in Catalog.load().models.items():
        if sha256 == (sha256_of(model.path) if model.bundled else model.sha256):
            return name
    return ""


def knows(name: str) -> bool:
    """Whether a name is in the catalogue or the index, be its files sound or not, or a server's model."""
    catalog = Catalog.load()
    return name in {*catalog.pairs, *catalog.models, *catalog.endpoints} or Store().find(name) is not None


def can_draft(entry: Entry) -> bool:
    """Whether localspec can draft with a file, be it a head; False for a head that cannot be read."""
    try:
        return entry.role != "head" or draft_kind(read_header(entry.path)).method in FROM_FILES
    except LocalspecError:
        return False


def _sound(entry: Entry) -> Path:
    if not entry.fault:
        return entry.path
    file = shlex.quote(entry.origin) if os.path.isfile(entry.origin) else "FILE"
    again = f"import {file} --name {shlex.quote(entry.name)}" if entry.source != "hub" else f"pull {entry.name}"
    raise ModelFileError(f"{entry.name} cannot be used: {entry.fault}.", f"Try: localspec {again}")


def title_of(target: Path, store: Store | None = None, named: str = "") -> str:
    """What to call the model of this file: of several names in the list the one by which the user named it."""
    real, entries = paths.real(target), (Store() if store is None else store).entries()
    if listed := [entry.name for entry in entries if not entry.fault and paths.real(entry.path) == real]:
        return named if named in listed else listed[0]
    own = ""
    with suppress(LocalspecError):  # it may be anything: "Smollm2 135M 8k Lc100K Mix1 Ep2"
        own = " ".join(read_header(target).text("general.name").split())
    letters = ["".join(filter(str.isalnum, name.lower())) for name in (own, target.stem)]
    return own if own and letters[0] in letters[1] else target.stem


def same_files(entry: Entry, entries: Iterable[Entry]) -> list[str]:
    """Names of other entries with the same bytes: one model that has several names."""
    own = tuple(file.sha256 for file in entry.files)
    return [one.name for one in entries if one.name != entry.name and tuple(file.sha256 for file in one.files) == own]


def twins(entry: Entry, entries: Iterable[Entry]) -> str:
    """That a model has other names here, too, after "it is"; "" = it has none."""
    same = same_files(entry, entries)
    return f"the same file as {', '.join(same)}: one model with {len(same) + 1} names" if same else ""


def twin_sentence(entry: Entry, entries: Iterable[Entry]) -> str:
    same = twins(entry, entries)
    return f"{entry.name} is {same}." if same else ""


VARIABLE = "LOCALSPEC_MODEL"  # environment variable with the name or file of a model; it beats what was chosen


@dataclass(frozen=True, slots=True)
class DefaultModel:
    """A model by name or file, and a draft model or head that was chosen with it."""

    target: str | None  # None = the bundled pair
    draft: str | None = None
    fault: str = ""  # why what was chosen cannot answer, which model does, and what to do; "" = it can


def choose(target: str, draft: str | None = None) -> None:
    """Keeps a name, or a file with its whole path, for later starts. Raises UsageError: it cannot be written."""
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
    """Leaves the choice to localspec again. Raises UsageError: the file cannot be removed."""
    try:
        _file().unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{_file()} cannot be removed: {error.strerror}.") from None


def default() -> DefaultModel:
    store, catalog = Store(), Catalog.load()
    if named := os.environ.get(VARIABLE, "").strip():
        try:
            _check(named, store, catalog)
        except LocalspecError as error:
            raise type(error)(f"{VARIABLE}: {error.message}", error.hint) from None
        return DefaultModel(named)
    fault, hint, target, draft = "", "", None, None
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # nothing was kept, or it is damaged
        kept = json.loads(paths.read_own(_file()))
        target, draft = kept["target"], kept.get("draft")
    if isinstance(target, str) and isinstance(draft, str | None):
        try:
            _check(target, store, catalog)
            return DefaultModel(target, draft)
        except LocalspecError as error:
            fault = f"The model you chose cannot answer: {error.message}"
            hint = error.hint or "`localspec use NAME` chooses another."
    targets = [entry for entry in store.entries() if entry.role == "target" and not entry.fault]
    found = DefaultModel(max(targets, key=lambda entry: entry.added).name if targets else None)
    return replace(found, fault=fault and f"{fault} {called(found)} answers. {hint}")


def called(chosen: DefaultModel) -> str:
    return chosen.target or DEFAULT_PAIR


def _check(name: str, store: Store, catalog: Catalog) -> None:
    """Refuses what `find` does not know, and a file that is not there."""
    target, _ = find(name, store, catalog)
    if not os.path.isfile(target):
        raise ModelFileError(f"{target} does not exist.")


def _file() -> Path:
    return paths.config_dir() / "model.json"
