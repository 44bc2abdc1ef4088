"""The catalogue `models.toml`: model files by name, and pairs of target and draft."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from localspec import paths
from localspec.errors import ModelError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PAIR = "tiny"
ROLES = ("target", "draft")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model file."""

    name: str
    """What a user types."""
    file: str
    """File name."""
    role: str
    """`target` or `draft`."""
    bundled: bool = False
    """Shipped inside the package."""
    sha256: str = ""
    """Of the file, lower-case hex; "" = unknown."""
    licence: str = ""
    """SPDX name or the publisher's own."""

    @property
    def path(self) -> Path:
        """Where the file is."""
        return paths.bundled(self.file)


@dataclass(frozen=True, slots=True)
class PairEntry:
    """A target and the draft model that fits it."""

    name: str
    """What a user types."""
    target: str
    """Name of a model."""
    draft: str
    """Name of a model."""
    why: str = ""
    """One sentence about the pair."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All entries, by name."""

    models: dict[str, ModelEntry]
    pairs: dict[str, PairEntry]

    @classmethod
    def load(cls, path: Path | None = None) -> Catalog:
        """Reads a catalogue file; None = the shipped one.

        Raises:
            UsageError: not TOML, an unknown or missing key, or a pair of unknown models; says which.
        """
        path = path or paths.models_toml()
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"Cannot read the catalogue {path}: {error}.") from None
        unknown = set(data) - {"model", "pair"}
        if unknown:
            raise UsageError(f"{path}: unknown table {sorted(unknown)[0]!r}; there are [[model]] and [[pair]].")
        models = _entries(ModelEntry, data.get("model", []), path)
        pairs = _entries(PairEntry, data.get("pair", []), path)
        for model in models.values():
            if model.role not in ROLES:
                raise UsageError(f"{path}: {model.name!r} has role {model.role!r}; it must be {' or '.join(ROLES)}.")
        for pair in pairs.values():
            for name in (pair.target, pair.draft):
                if name not in models:
                    raise UsageError(f"{path}: pair {pair.name!r} names the model {name!r}, which is not listed.")
        return cls(models, pairs)

    def resolve(self, name: str | None) -> tuple[Path, Path | None]:
        """Files of target and draft for a pair's name, a model's name or a path; None = the bundled pair.

        Raises:
            ModelError: nothing of that name, and no such file.
        """
        name = DEFAULT_PAIR if name is None else name
        if name in self.pairs:
            pair = self.pairs[name]
            return self.models[pair.target].path, self.models[pair.draft].path
        if name in self.models:
            return self.models[name].path, None
        if Path(name).suffix == ".gguf" or Path(name).exists():
            return Path(name), None
        known = ", ".join(sorted([*self.pairs, *self.models]))
        raise ModelError(f"There is no model or pair called {name!r}.", f"Give a .gguf file or one of: {known}.")


_Entry = TypeVar("_Entry", ModelEntry, PairEntry)


def _entries(kind: type[_Entry], rows: Any, path: Path) -> dict[str, _Entry]:
    if not isinstance(rows, list):
        raise UsageError(f"{path}: {rows!r} is not a list of tables.")
    found: dict[str, _Entry] = {}
    for row in rows:
        entry = _entry(kind, row, path)
        if entry.name in found:
            raise UsageError(f"{path}: {entry.name!r} is listed twice.")
        found[entry.name] = entry
    return found


def _entry(kind: type[_Entry], row: Any, path: Path) -> _Entry:
    if not isinstance(row, dict):
        raise UsageError(f"{path}: {row!r} is not a table.")
    unknown = set(row) - {field.name for field in fields(kind)}
    if unknown:
        raise UsageError(f"{path}: unknown key {sorted(unknown)[0]!r} in {row.get('name', row)!r}.")
    for field in fields(kind):
        wanted = bool if field.type == "bool" else str
        if field.name in row and not isinstance(row[field.name], wanted):
            raise UsageError(f"{path}: {field.name} is {row[field.name]!r}; it must be a {wanted.__name__}.")
    try:
        return kind(**row)
    except TypeError as error:
        raise UsageError(f"{path}: {row.get('name', row)!r}: {error}.") from None
