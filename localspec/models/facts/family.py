"""Models of one family: the same base and training in several sizes, so that a small one can draft for a large one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from localspec.gguf import Header
from localspec.models.hub.names import base_name
from localspec.models.installed.catalog import Catalog, ModelEntry

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
