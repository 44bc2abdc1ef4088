"""`localspec show PAIR --as ENGINE`: the command that serves the same target and drafter in another engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from localspec.errors import LocalspecError, ModelError, UsageError
from localspec.models.facts.elsewhere import Model, serving
from localspec.models.installed.catalog import Catalog, ModelEntry


def show_serving(name: str, engine: str, as_json: bool) -> int:
    """Prints the command, and on standard error what has to be put into it.

    Args:
        name: pair, model or GGUF file.
        engine: a key of `elsewhere.NAMES`.
        as_json: the command and the notes as one JSON object.

    Raises:
        UsageError: nothing is known that drafts for it, or the engine's documentation has no such method.
        ModelError: there is no such model.
    """
    found = serving(engine, *_parts(name, Catalog.load()))
    if as_json:
        print(json.dumps({"command": found.command, "notes": found.notes}))
        return 0
    print(found.command)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _parts(name: str, catalog: Catalog) -> tuple[str, Model, Model | None]:
    """Method, target and draft (None = the target drafts for itself)."""
    from localspec.gguf import read_header
    from localspec.models.facts.heads import draft_kind, nextn_layers
    from localspec.models.installed.installed import find

    pair = catalog.pairs.get(name)
    if pair is not None:
        return pair.method, _listed(catalog.models[pair.target]), _listed(catalog.models[pair.draft])
    try:
        target, draft = find(name, catalog=catalog)
    except ModelError as error:
        if name not in catalog.models:
            raise
        raise UsageError(f"{name} is not installed, so that nothing tells what drafts for it.", error.hint) from None
    if draft is not None:
        return draft_kind(read_header(draft)).method, _of_file(target, name), _of_file(draft, draft.name)
    if nextn_layers(read_header(target)):
        return "mtp", _of_file(target, name), None
    raise UsageError(f"Nothing is known that drafts for {name}.", "Name a pair: localspec list --catalog")


def _listed(entry: ModelEntry) -> Model:
    """A model of the catalogue, by its file if that is on this machine."""
    from localspec.models.hub.names import quant_of
    from localspec.models.installed.installed import find_one

    try:
        return _of_file(find_one(entry.name), entry.repository or entry.name)
    except LocalspecError:
        quant = entry.quant or quant_of(entry.file)
        return Model(entry.repository, "", f"{entry.repository}:{quant}" if quant else entry.repository)


def _of_file(path: Path, called: str) -> Model:
    """A file on this machine. What `general.base_model` names may be a model it was trained from, so that it is no
    answer to which checkpoint it was made from."""
    from localspec.gguf import read_header

    header = read_header(path)
    source = header.text("general.source.huggingface.repository") or header.text("general.source.repo_url")
    return Model(called, str(path), "", source.removeprefix("https://huggingface.co/"))
