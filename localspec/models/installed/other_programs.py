"""Models that other programs of this machine keep: LM Studio, Ollama, llama.cpp, the hub's cache, and downloads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.errors import LocalspecError
from localspec.gguf import read_header
from localspec.gguf.split import present_parts, split_of
from localspec.models.facts.heads import draft_kind
from localspec.models.installed.store import Store

MOST_FILES = 10_000
"""Files that are looked at in a program's folder: one that holds more is no folder of models."""
_OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"
"""The layer of an Ollama manifest that is the model's GGUF file."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A model that another program keeps."""

    path: Path
    """The file, or the first part of a split one."""
    name: str
    """What it would be called here."""
    program: str
    """Who keeps it, in words."""
    bytes: int
    """Of all its parts."""
    quant: str
    architecture: str
    is_head: bool
    """It drafts for one target, and answers nothing by itself."""
    installed: str
    """What it is called here already; "" = it is not in the list."""


def find_kept(store: Store) -> list[Kept]:
    """Models of other programs that can answer or draft here, by program and name; each file once.

    Files that cannot be read, and such as only encode texts or pictures, are left out.
    """
    installed = {
        paths.real(file.path): entry.name for entry in store.entries() for file in entry.files if file.path.exists()
    }
    found: dict[Path, Kept] = {}
    for program, path, name in _files():
        real = paths.real(path)
        if real in found or split_of(path.name).part != 1:
            continue
        try:
            one = _read(program, path, name, installed.get(real, ""))
        except (LocalspecError, OSError):
            continue
        if one is not None:
            found[real] = one
    return list(found.values())


def _read(program: str, path: Path, name: str, installed: str) -> Kept | None:
    parts = present_parts(path)
    header = read_header(path)
    kind = draft_kind(header)
    if not kind.drafts:
        return None
    size = sum(part.stat().st_size for part in parts)
    return Kept(path, name, program, size, header.quantisation, header.architecture, kind.is_head, installed)


def _files() -> Iterator[tuple[str, Path, str]]:
    """(program, file, name) of everything that may be a model, program by program."""
    home = paths.home()
    for folder in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        yield from _named("LM Studio", _below(folder))
    for folder in _ollama_folders():
        yield from _ollama(folder)
    yield from _named("the hub's cache", _below(hub_cache()))
    yield from _named("llama.cpp's cache", _below(_llama_cache()))
    yield from _named("Downloads", _directly_in(_downloads()))


def _named(program: str, files: Iterator[Path]) -> Iterator[tuple[str, Path, str]]:
    for file in files:
        yield program, file, split_of(file.name).stem


def _below(folder: Path) -> Iterator[Path]:
    """The GGUF files in a folder and its folders, by name. What cannot be read is left out."""
    seen = 0
    for where, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        for name in sorted(names):
            seen += 1
            if seen > MOST_FILES:
                return
            if name.lower().endswith(".gguf"):
                yield Path(where, name)


def _directly_in(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(".gguf"))
    except OSError:
        return
    yield from (folder / name for name in names)


def _ollama_folders() -> list[Path]:
    """Where Ollama keeps models: for this user, and for the service that its installer sets up on Linux."""
    own = os.environ.get("OLLAMA_MODELS")
    return [Path(own) if own else paths.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def _ollama(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Ollama's files have no names: a manifest for each model and tag says which blob has its weights."""
    manifests = folder / "manifests"
    for where, folders, names in os.walk(manifests):
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
    cache = os.environ.get("HF_HUB_CACHE")
    if cache:
        return paths.typed(cache)
    home = os.environ.get("HF_HOME")
    return (paths.typed(home) if home else _caches() / "huggingface") / "hub"


def _llama_cache() -> Path:
    """Where llama.cpp's programs keep what they fetched (`-hf`)."""
    own = os.environ.get("LLAMA_CACHE")
    if own:
        return Path(own)
    return (paths.home() / "Library" / "Caches" if sys.platform == "darwin" else _caches()) / "llama.cpp"


def _caches() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache) if cache else paths.home() / ".cache"


def _downloads() -> Path:
    from platformdirs import user_downloads_path

    return user_downloads_path()
