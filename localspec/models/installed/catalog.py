"""The catalogue `models.toml`: model files by name, pairs of target and draft, and models that servers answer with.

The shipped file says what localspec knows; a `models.toml` in the user's config folder adds entries and replaces those
of the same name. Every key is a field of `ModelEntry`, `PairEntry` or `EndpointEntry`, which document it; unknown keys
are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from localspec import paths
from localspec.errors import ModelError, UsageError, reason
from localspec.methods import FROM_FILES
from localspec.models.hub.names import RepositoryName, base_name, is_server

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PAIR = "tiny"
ROLES = ("target", "draft", "head")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model file: a [[model]] table."""

    name: str  # what a user types
    role: str  # `target`, `draft` (a small whole model) or `head` (works on one target's hidden states only)
    file: str = ""  # file name in the repository; "" = chosen by `quant`
    repository: str = ""  # `user/repo` on the hub; "" = bundled
    quant: str = ""  # quantisation of the file, where its exact name is not known; without both, the usual one
    revision: str = ""  # commit, 40 hex digits; "" = the newest
    bytes: int = 0  # size; 0 = unknown
    sha256: str = ""  # of the file, 64 hex digits; "" = unknown
    licence: str = ""  # SPDX name or the publisher's own; "" = unknown
    context: int = 0  # tokens it was trained for; 0 = unknown
    template: str = ""  # a note on its chat template
    bundled: bool = False  # shipped inside the package
    source: str = ""  # who says so: where bytes, sha256 and revision are quoted from
    verified: str = ""  # day on which the entry was compared with the file itself, YYYY-MM-DD; "" = not yet
    doubt: str = ""  # what even the source leaves open

    @property
    def path(self) -> Path:
        return paths.bundled(self.file)

    @property
    def reference(self) -> str:
        """What `localspec pull` understands: `user/repo/file`, `user/repo:quant` or `user/repo`; "" if bundled."""
        if not self.repository:
            return ""
        return str(RepositoryName(self.repository, self.quant, self.file))

    def is_called(self, names: Collection[str]) -> bool:
        """Whether one of these names, of models or files, is its own."""
        return self.name in names or (bool(self.file) and self.file in names)

    def fault(self) -> str:
        if self.role not in ROLES:
            return f"has role {self.role!r}; it must be {' or '.join(ROLES)}"
        if bool(self.repository) == self.bundled:
            return "must either be bundled or name a repository"
        if self.file and self.quant:
            return "must not name both a file and a quant"
        if self.bundled and not self.file:
            return "is bundled and names no file"
        for name, length in (("sha256", 64), ("revision", 40)):
            value = getattr(self, name)
            if value and not re.fullmatch(f"[0-9a-f]{{{length}}}", value):
                return f"has the {name} {value!r}; it must be {length} hex digits"
        for name in ("bytes", "context"):
            if getattr(self, name) < 0:
                return f"has {name} {getattr(self, name)}; it must not be negative"
        return _day_fault(self.verified)


@dataclass(frozen=True, slots=True)
class PairEntry:
    """A target and what drafts for it: a [[pair]] table."""

    name: str  # what a user types
    target: str  # name of a model
    draft: str  # name of a model
    method: str = "draft"  # how it drafts: `draft` (a small whole model), or the kind of head, such as `eagle3`
    why: str = ""  # why this pair: one sentence
    acceptance: float = -1.0  # acceptance rate measured with localspec, 0 to 1; -1 = not measured
    verified: str = ""  # day `localspec check` passed on the two real files, YYYY-MM-DD; "" = not yet
    doubt: str = ""  # what even the source leaves open

    def fault(self) -> str:
        if self.method not in FROM_FILES:
            return f"has method {self.method!r}; it must be one of {', '.join(FROM_FILES)}"
        if self.acceptance != -1.0 and not 0.0 <= self.acceptance <= 1.0:
            return f"has acceptance {self.acceptance}; it must be between 0 and 1"
        return _day_fault(self.verified)


@dataclass(frozen=True, slots=True)
class EndpointEntry:
    """A model that an OpenAI-style server answers with: an [[endpoint]] table. The file never holds the key itself."""

    name: str  # what a user types
    endpoint: str  # the server's address, with or without /v1
    model: str = ""  # as the server calls it; "" = the first that it lists
    key_env: str = ""  # the environment variable that holds the server's key; "" = none does
    keyring: str = ""  # the service under which Python's `keyring` keeps it, with `name` as its user; "" = it does not

    @property
    def title(self) -> str:
        return f"{self.model or 'the first model'} at {self.endpoint}"

    def fault(self) -> str:
        """What is wrong with the entry; "" = nothing. An address may hold a password and is not repeated."""
        if not is_server(self.endpoint):
            return "has an endpoint that does not look like http://127.0.0.1:8000/v1"
        if self.key_env and self.keyring:
            return "must not name both a key_env and a keyring"
        return ""


def _day_fault(day: str) -> str:
    return "" if not day or re.fullmatch(r"\d{4}-\d\d-\d\d", day) else f"has verified {day!r}; it must be YYYY-MM-DD"


@dataclass(frozen=True, slots=True)
class Catalog:
    models: dict[str, ModelEntry]
    pairs: dict[str, PairEntry]
    endpoints: dict[str, EndpointEntry] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> Catalog:
        """Reads a catalogue file; None = the shipped one, with the user's own over it if there is one."""
        last = path or paths.models_toml()
        found = _read(last)
        if path is None and (own := paths.config_dir() / "models.toml").exists():
            users, last = _read(own), own
            found = cls(found.models | users.models, found.pairs | users.pairs, found.endpoints | users.endpoints)
        for pair in found.pairs.values():
            for name in (pair.target, pair.draft):
                if name not in found.models:
                    raise UsageError(f"{last}: pair {pair.name!r} names the model {name!r}, which is not listed.")
        kinds: dict[str, Collection[str]] = {"model": found.models, "pair": found.pairs, "endpoint": found.endpoints}
        for (one, names), (other, more) in combinations(kinds.items(), 2):
            if both := sorted(set(names) & set(more)):
                article = "an" if other == "endpoint" else "a"
                raise UsageError(f"{last}: {both[0]!r} is the name of a {one} and of {article} {other}.")
        return found

    def nearest(self, name: str, more: Iterable[str] = ()) -> str:
        """A sentence with the names most like an unknown one, of the catalogue and of `more`, or with all pairs."""
        known = sorted({*self.pairs, *self.models, *self.endpoints, *more})
        close = get_close_matches(name.lower(), known, 4, 0.7) or [one for one in known if name.lower() in one][:4]
        if name and close:
            return f"Did you mean {' or '.join(close)}?"
        return f"The pairs are: {', '.join(sorted(self.pairs))}."

    def like(self, names: Collection[str]) -> list[ModelEntry]:
        """Models with one of these names of models, files or repositories, and other quantisations of the same."""
        bases = {base_name(name) for name in names} - {""}
        entries = self.models.values()
        return [one for one in entries if one.is_called(names) or base_name(one.file or one.repository) in bases]

    def alone(self, methods: Collection[str] = FROM_FILES) -> list[ModelEntry]:
        """Targets that are in no pair that drafts in one of these ways."""
        paired = {pair.target for pair in self.pairs.values() if pair.method in methods}
        return [entry for entry in self.models.values() if entry.role == "target" and entry.name not in paired]

    def check_local(self, name: str) -> None:
        """Raises ModelError: a server answers with the model of this name; the hint says what can use it."""
        if name in self.endpoints:
            text = f"{name!r} is {self.endpoints[name].title}, and this needs a model of this machine."
            raise ModelError(text, "`localspec run`, `localspec chat` and /model can use it.")

    def drafts_for(self, target: str) -> list[PairEntry]:
        return [pair for pair in self.pairs.values() if pair.target == target]


def _read(path: Path) -> Catalog:
    try:
        data = tomllib.loads(paths.read_own(path))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"Cannot read the catalogue {path}: {reason(error)}.") from None
    if unknown := set(data) - {"model", "pair", "endpoint"}:
        known = "there are [[model]], [[pair]] and [[endpoint]]"
        raise UsageError(f"{path}: unknown table {sorted(unknown)[0]!r}; {known}.")
    models, pairs, endpoints = (data.get(one, []) for one in ("model", "pair", "endpoint"))
    return Catalog(
        _entries(ModelEntry, models, path), _entries(PairEntry, pairs, path), _entries(EndpointEntry, endpoints, path)
    )


_Entry = TypeVar("_Entry", ModelEntry, PairEntry, EndpointEntry)
_KINDS: dict[Any, type] = {"bool": bool, "int": int, "float": float, "str": str}


def _entries(kind: type[_Entry], rows: Any, path: Path) -> dict[str, _Entry]:
    if not isinstance(rows, list):
        raise UsageError(f"{path}: {rows!r} is not a list of tables.")
    found: dict[str, _Entry] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise UsageError(f"{path}: {row!r} is not a table.")
        if unknown := set(row) - {one.name for one in fields(kind)}:
            raise UsageError(f"{path}: unknown key {sorted(unknown)[0]!r} in {row.get('name', '?')!r}.")
        for one in fields(kind):
            wanted, value = _KINDS[one.type], row.get(one.name)
            if value is not None and type(value) is not wanted and not (wanted is float and type(value) is int):
                raise UsageError(f"{path}: {one.name} is {value!r}; it must be a {wanted.__name__}.")
        try:
            entry = kind(**row)
        except TypeError as error:
            raise UsageError(f"{path}: {row.get('name', '?')!r}: {error}.") from None
        if fault := entry.fault():
            raise UsageError(f"{path}: {entry.name!r} {fault}.")
        if entry.name in found:
            raise UsageError(f"{path}: {entry.name!r} is listed twice.")
        found[entry.name] = entry
    return found
