"""Where the files of a name are: catalogue, index and plain paths; and the model that answers where none is named: the
one that was chosen, else the newest one, else the bundled pair. Files that are already on this machine, of other
programs or trained here, are taken into the index."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from localspec import paths
from localspec.errors import LocalspecError, ModelError, ModelFileError, UsageError, explained
from localspec.gguf import first_part, present_parts, read_header, split_of
from localspec.methods import FROM_FILES
from localspec.models.facts.heads import draft_kind
from localspec.models.facts.pairing import TRAINED_FOR
from localspec.models.hub.names import parse, quant_of
from localspec.models.installed.catalog import DEFAULT_PAIR, Catalog
from localspec.models.installed.store import Entry, Ownership, Store, StoredFile
from localspec.paths import Progress, sha256_of, typed
from localspec.processes import is_held

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
    file = quote(entry.origin) if os.path.isfile(entry.origin) else "FILE"
    again = f"import {file} --name {quote(entry.name)}" if entry.source != "hub" else f"pull {entry.name}"
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
    with explained(f"The choice cannot be saved to {_file()}", UsageError):
        paths.write_whole(_file(), json.dumps({"target": target, "draft": draft}) + "\n")


def whole(target: str) -> str:
    """What names a target from any folder: its name, or the whole path of a file."""
    path = paths.typed(target)
    return str(paths.real(path)) if os.path.isfile(path) and not knows(target) else target


def forget() -> None:
    """Leaves the choice to localspec again. Raises UsageError: the file cannot be removed."""
    with explained(f"{_file()} cannot be removed", UsageError):
        _file().unlink(missing_ok=True)


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


MOST_FILES = 10_000  # files that are looked at in a program's folder: one that holds more is no folder of models
_OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"  # the layer of an Ollama manifest that is the model's GGUF file


@dataclass(frozen=True, slots=True)
class Kept:
    path: Path  # the file, or the first part of a split one
    name: str  # what it would be called here
    program: str  # who keeps it, in words
    bytes: int
    quant: str
    architecture: str
    is_head: bool  # it drafts for one target, and answers nothing by itself
    installed: str  # what it is called here already; "" = it is not in the list


def find_kept(store: Store) -> list[Kept]:
    """Models of other programs that can answer or draft here, by program and name; each file once. Files that cannot be
    read, and such as only encode texts or pictures, are left out."""
    installed = {
        paths.real(file.path): entry.name for entry in store.entries() for file in entry.files if file.path.exists()
    }
    found: dict[Path, Kept] = {}
    for program, path, name in _files():
        real = paths.real(path)
        if real in found or split_of(path.name).part != 1:
            continue
        with suppress(LocalspecError, OSError):
            size, header = sum(part.stat().st_size for part in present_parts(path)), read_header(path)
            kind = draft_kind(header)
            if kind.drafts:
                facts = (size, header.quantisation, header.architecture, kind.is_head)
                found[real] = Kept(path, name, program, *facts, installed.get(real, ""))
    return list(found.values())


def _files() -> Iterator[tuple[str, Path, str]]:
    """(program, file, name) of everything that may be a model, program by program."""
    from platformdirs import user_downloads_path

    home, downloads = paths.home(), user_downloads_path()
    for folder in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        yield from _below("LM Studio", folder)
    own = os.environ.get("OLLAMA_MODELS")  # and below /usr what the service has that its installer sets up on Linux
    yield from _ollama(Path(own) if own else home / ".ollama" / "models")
    yield from _ollama(Path("/usr/share/ollama/.ollama/models"))
    yield from _below("the hub's cache", hub_cache())
    own = os.environ.get("LLAMA_CACHE")  # where llama.cpp's programs keep what they fetched (`-hf`)
    caches = home / "Library" / "Caches" if sys.platform == "darwin" else _caches()
    yield from _below("llama.cpp's cache", Path(own) if own else caches / "llama.cpp")
    yield from _below("Downloads", downloads, deep=False)


def _below(program: str, folder: Path, deep: bool = True) -> Iterator[tuple[str, Path, str]]:
    """The GGUF files in a folder, and if `deep` in its folders, by name. What cannot be read is left out."""
    seen = 0
    for where, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(folders) if deep else []
        for name in sorted(names):
            seen += 1
            if deep and seen > MOST_FILES:
                return
            if name.lower().endswith(".gguf"):
                yield program, Path(where, name), split_of(name).stem


def _ollama(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Ollama's files have no names: a manifest for each model and tag says which blob has its weights."""
    for where, folders, names in os.walk(folder / "manifests"):
        folders.sort()
        for tag in sorted(names):
            manifest = Path(where, tag)
            try:
                layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
                digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_WEIGHTS]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            for digest in digests:
                blob = folder / "blobs" / str(digest).replace(":", "-")
                if isinstance(digest, str) and blob.parent == folder / "blobs" and blob.is_file():
                    yield "Ollama", blob, f"{manifest.parent.name}-{tag}"


def hub_cache() -> Path:
    """The cache that every program shares which loads models with Hugging Face's library, by its own variables."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return paths.typed(cache)
    home = os.environ.get("HF_HOME")
    return (paths.typed(home) if home else _caches() / "huggingface") / "hub"


def _caches() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache) if cache else paths.home() / ".cache"


def adopt(
    file: Path,
    store: Store,
    *,
    name: str = "",
    role: str = "target",
    copy: bool = False,
    progress: Progress | None = None,
) -> Entry:
    """Installs a file of this machine, any part of a split one: a link to it, or a checked copy. An imported file that
    was changed or moved since is taken in anew by its name. `name`: "" = the file's without .gguf. `role`: "target" or
    "draft". Raises ModelError: it cannot generate text."""
    parts = present_parts(file)
    header, *_ = [read_header(part) for part in parts]
    kind = draft_kind(header)
    if not kind.drafts or (kind.is_head and role == "target"):
        raise ModelError(f"{file} cannot be a {role}: it is {kind.sentence}.", "--role draft takes heads.")
    name, catalog = name or split_of(file.name).stem, Catalog.load()
    if not name.isprintable() or not name.strip() or name.startswith("-"):
        raise UsageError(f"{name!r} cannot be the name of a model.", "Give another --name.")
    if name in catalog.pairs or (name in catalog.models and catalog.models[name].bundled):
        raise UsageError(f"{name!r} is the name of a pair or model localspec knows.", "Give another --name.")
    if any(entry.name == name and not (entry.source == "import" and entry.fault) for entry in store.entries()):
        raise UsageError(f"{name!r} is installed already.", f"Give another --name, or first: localspec rm {name}")
    sums = [sha256_of(part, progress) for part in parts]
    # A copy is shared by all who import these bytes; a link is not, as each original may change or go by itself.
    same = [*sums, "copy"] if copy else [*sums, str(paths.real(parts[0]))]
    folder = store.files / hashlib.sha256("\n".join(same).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    ownership: Ownership = "copy" if copy else "link"
    files = list[StoredFile]()
    for part, own in zip(parts, sums, strict=True):
        files.append(StoredFile.of(_copied(part, folder, own) if copy else _linked(part, folder), own, ownership))
    entry = Entry(
        name,
        tuple(files),
        role="head" if kind.is_head else role,
        source="import",
        origin=paths.shown(file.absolute()),
        quant=quant_of(file.name) or header.quantisation,
        architecture=header.architecture,
        licence=header.text("general.license"),
    )
    return store.add(entry)[0]


def _linked(source: Path, folder: Path) -> Path:
    link, real = folder / source.name, paths.real(source)
    if paths.real(link) != real:
        link.unlink(missing_ok=True)
        link.symlink_to(real)
    return link


def _copied(source: Path, folder: Path, sha256: str) -> Path:
    from huggingface_hub.utils import WeakFileLock

    from localspec.models.hub.download import PARTIAL, lock_of

    final = folder / source.name
    fresh = final.with_name(final.name + PARTIAL)  # `rm --partial` finds it after a kill
    lock = lock_of(fresh, folder)
    lock.parent.mkdir(exist_ok=True)
    with WeakFileLock(lock):
        if final.is_file() and sha256_of(final) == sha256:
            return final
        try:
            shutil.copyfile(source, fresh)
            if sha256_of(fresh) != sha256:
                raise ModelFileError(f"{source} was changed while it was copied.", "Try again.")
            os.replace(fresh, final)
        finally:
            fresh.unlink(missing_ok=True)
    return final


LOCK = "lock"  # the file of a work folder by which a second run is kept out


def work_folder(name: str) -> Path:
    """Where answers, checkpoint and result of a draft model lie while it is trained, and afterwards."""
    return paths.data_dir() / "training" / name


def size_of(name: str) -> int:
    return sum(file.stat().st_size for file in work_folder(name).rglob("*") if file.is_file())


def is_begun(name: str) -> bool:
    folder = work_folder(name)  # an imported model may be called ".."
    return folder.is_dir() and paths.real(folder).parent == paths.real(work_folder("x")).parent


def forget_training(name: str) -> int:
    """Removes what training it left; the bytes that are given back. Raises ModelError: it is being trained."""
    if not is_begun(name):
        return 0
    if is_held(work_folder(name) / LOCK):
        raise ModelError(f"{name!r} is being trained by another process.", "End it first.")
    count = size_of(name)
    shutil.rmtree(work_folder(name), ignore_errors=True)
    return count


def check_name(name: str, store: Store) -> None:
    """Raises UsageError: a model that was not trained here is called so, or it cannot be the name of a file."""
    catalog = Catalog.load()
    if not name or name.startswith((".", "-")) or not name.isprintable() or "/" in name or "\\" in name:
        raise UsageError(f"--out is {name!r}; it must be a name, without slashes.")
    entry = next((one for one in store.entries() if one.name == name), None)
    if name in catalog.pairs or name in catalog.models or (entry is not None and not is_trained(entry)):
        raise UsageError(f"--out is {name!r}, which another model is called.", "Give another name.")


def keep(target: Path, name: str, file: Path, store: Store, drafts: bool) -> str:
    """Installs a copy of the file that was trained for a target, and if it `drafts` makes it its draft model; the
    sentence says how it is used from now on."""
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
        stem = split_of(target.name).stem
        entry = adopt(target, store, name=f"{name}-target" if knows(stem) else stem)
    store.add(replace(entry, draft=name))
    return f"It drafts for {entry.name} from now on."
