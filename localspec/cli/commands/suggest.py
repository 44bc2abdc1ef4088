"""`localspec suggest`: what can draft for a target: pairs of the catalogue, and models here whose tokenizer fits."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from shlex import quote

from rich.filesize import decimal

from localspec.cli.output import print_plain
from localspec.errors import ModelError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="model or GGUF file; the files beside it are looked at too")
    parser.add_argument("--json", action="store_true", help="the suggestions as JSON")


def run(options: argparse.Namespace) -> int:
    from localspec.cli.output import drafts, not_used
    from localspec.gguf.split import read_parts
    from localspec.models.hub.names import RepositoryName, parse
    from localspec.models.hub.pull import candidates, suggest
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find_one

    catalog = Catalog.load()
    pair = catalog.pairs.get(options.target)
    name = options.target if pair is None else pair.target
    parts, names, path = None, {name}, None
    try:
        path = find_one(name, catalog=catalog)
    except ModelError:
        if name not in catalog.models and not isinstance(parse(name), RepositoryName):
            raise
    else:
        parts = read_parts(path)
        names.add(path.name)
    found = suggest(parts, names, catalog, candidates(path), name if parts else "")
    if options.json:
        print(json.dumps([asdict(one) | {"unused": not_used(one.method)} for one in found]))
        return 0 if found else 1
    for one in found:
        here = "here" if one.installed else "on the hub"
        length = f", {decimal(one.bytes)}" if one.bytes else ""
        doubt = f"in doubt: {one.doubt}" if one.doubt else ""
        notes = (f"  note: {note}" for note in (not_used(one.method), *one.warnings, doubt) if note)
        print_plain(f"{one.draft} ({one.method}, {here}{length}): {one.why}", *notes)
        if not one.installed or drafts(one.method):
            print_plain(f"  {one.command}")
    if not found:
        print_plain(
            f"Nothing is known that drafts for {name}. Drafters without a file draft for it unasked; "
            f"localspec train {quote(name)} makes a draft model."
        )
    return 0 if found else 1
