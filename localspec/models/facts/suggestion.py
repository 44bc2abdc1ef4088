"""Drafts for a target: pairs the catalogue lists, and models on this machine whose tokenizer fits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from localspec import paths
from localspec.errors import LocalspecError
from localspec.gguf import Header
from localspec.gguf.split import read_parts, split_of
from localspec.methods import OF_ITS_OWN
from localspec.models.facts.heads import draft_kind, nextn_layers
from localspec.models.facts.pairing import match
from localspec.models.hub.names import base_name, drafter_method
from localspec.models.hub.sidecar import forgets, misfit, rank
from localspec.models.installed.catalog import Catalog, ModelEntry
from localspec.models.installed.store import Store

_MOST_BYTES = 0.7
"""A draft larger than this share of its target cannot pay."""
_MOST_NEIGHBOURS = 200


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something that can draft for a target."""

    draft: str
    """Name in the catalogue or the list of installed models, or a file; the target's own if it drafts for itself."""
    method: str
    installed: bool
    bytes: int
    """0 = unknown."""
    why: str
    command: str
    """What to type next."""
    warnings: tuple[str, ...] = ()
    doubt: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def suggest(
    target: Header | Sequence[Header] | None,
    names: Iterable[str],
    catalog: Catalog,
    installed: dict[str, Path],
    called: str = "",
) -> list[Suggestion]:
    """Drafts for a target, installed ones first, then by size.

    Args:
        target: its header, or those of all its files; None = not on this machine, so that only the catalogue can tell.
        names: what the target is called: names of the catalogue, file names, `user/repo[:quant]`. Another
            quantisation of a model of the catalogue is drafted for by the same, and where there is none, models of
            the same family tell.
        catalog: what is known.
        installed: models on this machine by name; a file may also be given by its path.
        called: what the user types for the target; "" = its path.
    """
    known, parts = set(names), [target] if isinstance(target, Header) else target or []
    first = parts[0] if parts else None
    called = quote(called or (str(first.path) if first is not None else "TARGET"))
    found: dict[str, Suggestion] = {}
    for entry in catalog.like(known):
        exactly = entry.is_called(known)
        for pair in catalog.drafts_for(entry.name):
            draft = catalog.models[pair.draft]
            here = draft.bundled or draft.name in installed
            found[draft.name] = Suggestion(
                draft.name,
                pair.method,
                here,
                _size(draft, installed),
                pair.why,
                _command(pair.name if exactly else "", draft.name, here, called),
                (),
                pair.doubt,
            )
    if not found:
        found = {one.draft: one for one in _of_family(parts, known, catalog, installed, called)}
    mixture = False
    if first is not None:
        if forgets(first):
            return []
        mixture = first.number("expert_count") > 0
        found |= {one.draft: one for one in _inside(first, called)}
        for name, path in installed.items():
            if name not in found and (one := _fitting(parts, name, path, called)) is not None:
                found[name] = one
    return sorted(found.values(), key=lambda one: (not one.installed, rank(one.method, mixture), one.bytes))


def _of_family(
    target: Sequence[Header], names: set[str], catalog: Catalog, installed: dict[str, Path], called: str
) -> Iterator[Suggestion]:
    """Draft models of the catalogue that are smaller than the target, and of its family or of the one it was made from.
    Of one that is here the tokenizer decides; of others nothing but names is known before they are fetched.
    """
    size = sum(part.parameters for part in target) or max(map(parameters_of, names), default=0.0)
    for family in families(target[0] if target else None, names):
        entries = {entry.name: entry for entry in relatives(family, catalog)}
        for name, draft in entries.items():
            if draft.bundled or name in installed:
                continue  # its header tells: see `_fitting`
            if parameters_of(draft.file or draft.repository) > _MOST_BYTES * size:
                continue
            why = f"it is small and drafts for models of the target's family, {family}"
            note = "tokenizers are compared once it is here"
            command = _command("", name, False, called)
            yield Suggestion(name, "draft", False, draft.bytes, why, command, (note,), draft.doubt)
        if entries:
            return


def _inside(target: Header, called: str) -> list[Suggestion]:
    """Multi-token prediction in the target's own file; nothing can be said of one that is not here."""
    count = nextn_layers(target) if target.path.exists() else 0
    why = f"{count} layer(s) of multi-token prediction inside its own file, used unasked"
    return [Suggestion(str(target.path), OF_ITS_OWN, True, 0, why, f"localspec run --target {called}")] if count else []


def _command(pair: str, draft: str, here: bool, target: str) -> str:
    """What to type to use a draft of the catalogue."""
    if pair:
        return f"localspec run --target {pair}" if here else f"localspec pull {pair}"
    fetch = "" if here else f"localspec pull {draft} --role draft && "
    return f"{fetch}localspec run --target {target} --draft {draft}"


def candidates(path: Path | None = None, store: Store | None = None) -> dict[str, Path]:
    """Sound models on this machine by name, the bundled ones included; and what lies beside a file."""
    found = {entry.name: entry.path for entry in Catalog.load().models.values() if entry.bundled}
    found |= {entry.name: entry.path for entry in (store or Store()).entries() if not entry.fault}
    return found if path is None else found | neighbours(path, found.values())


def neighbours(path: Path, known: Iterable[Path] = ()) -> dict[str, Path]:
    """Other GGUF files in the folder of a file, and drafters by their names in the one above; by path.

    Args:
        path: of the file.
        known: files that are left out.
    """
    taken = {paths.real(file) for file in known}
    try:
        files = sorted(path.parent.glob("*.gguf"))
        files += [file for file in sorted(path.parent.parent.glob("*.gguf")) if drafter_method(file.stem)]
    except OSError:
        return {}
    first = (file for file in files[:_MOST_NEIGHBOURS] if split_of(file.name).part == 1)
    others = (file for file in first if file.is_file() and file != path)
    return {str(file): file for file in others if paths.real(file) not in taken}


def _size(entry: ModelEntry, installed: dict[str, Path]) -> int:
    path = entry.path if entry.bundled else installed.get(entry.name)
    return path.stat().st_size if path is not None and path.exists() else entry.bytes


def _fitting(target: Sequence[Header], name: str, path: Path, called: str) -> Suggestion | None:
    """A model on this machine, if it is small enough and its tokenizer fits; files that cannot be read are not."""
    first, size = target[0], sum(part.tensor_bytes for part in target)
    try:
        draft, *more = read_parts(path)
        draft_size = sum(part.tensor_bytes for part in (draft, *more))
        same = first.path.exists() and path.samefile(first.path)  # a target on the hub has no file here
        if same or not (draft_size <= _MOST_BYTES * size or draft_kind(draft).is_head) or misfit(target, draft):
            return None
        found = match(first, draft)
    except (LocalspecError, OSError):
        return None
    if not found.fits:
        return None
    times = size / max(1, draft_size)
    command = f"localspec run --target {called} --draft {quote(name)}"
    why = f"its tokenizer fits, and the target is {times:.1f} times as large"
    return Suggestion(
        name, found.method, True, sum(part.file_bytes for part in (draft, *more)), why, command, found.warnings
    )


# Models of one family: the same base and training in several sizes, so that a small one can draft for a large one.

_SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])")
"""A number of parameters as names write it: 0.5b, 135m, 8x7b."""
_ACTIVE = re.compile(r"[ae]\d+(?:\.\d+)?b")
"""Those in use for a token: a3b, e2b."""
_MOST_BASES = 4
"""Models that a header may say it was made from, of which notice is taken."""


def family_of(name: str) -> str:
    """What the names of a family have in common: a model's without its size, such as "qwen2.5-coder-instruct". "" for
    a name without a size.
    """
    words = _words(name)
    rest = [word for word in words if not (_SIZE.fullmatch(word) or _ACTIVE.fullmatch(word))]
    return "-".join(rest) if rest and parameters_of(name) else ""


def parameters_of(name: str) -> float:
    """Parameters that a name states; 0 = none."""
    found = next(filter(None, map(_SIZE.fullmatch, _words(name))), None)
    if found is None:
        return 0.0
    return int(found[1] or 1) * float(found[2]) * (1e9 if found[3] == "b" else 1e6)


def _words(name: str) -> list[str]:
    return re.split(r"[-_]+", base_name(re.sub(r"\s+", "-", name.strip())))


def families(target: Header | None, names: Iterable[str]) -> list[str]:
    """Families a target may be of: its own, as its names and its header have it, then those it was made from."""
    own, bases = [*names], list[str]()
    if target is not None:
        own.append(target.text("general.name"))
        parts = (target.text(f"general.{part}") for part in ("basename", "size_label", "finetune"))
        own.append("-".join(filter(None, parts)))
        keys = (f"general.base_model.{number}.{key}" for number in range(_MOST_BASES) for key in ("name", "repo_url"))
        bases = [target.text(key) for key in keys]
    return [found for found in dict.fromkeys(map(family_of, [*own, *bases])) if found]


def relatives(family: str, catalog: Catalog) -> Iterator[ModelEntry]:
    """Draft models of the catalogue for a family: those of the family, and those that draft for a target of it."""
    found = [entry for entry in catalog.models.values() if family_of(entry.file or entry.repository) == family]
    for entry in found:
        if entry.role == "draft":
            yield entry
        for pair in catalog.drafts_for(entry.name):
            if pair.method == "draft":
                yield catalog.models[pair.draft]
