"""`localspec search`: GGUF repositories of the hub and entries of the catalogue, by words."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from localspec.chat.text_file import check_text
from localspec.cli.output import print_plain
from localspec.cli.parser import whole


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="WORD", help="all must be in the name")
    parser.add_argument("--limit", type=whole(1), default=20, metavar="N", help="at most N repositories; default: 20")
    parser.add_argument("--json", action="store_true", help="what was found as JSON")


def run(options: argparse.Namespace) -> int:
    from localspec.models.hub.hub import Hub
    from localspec.models.installed.catalog import Catalog

    for word in options.words:
        check_text(word, "A word")
    words = [word.lower() for word in options.words]
    catalog = Catalog.load()
    pairs = [pair for pair in catalog.pairs.values() if all(word in pair.name.lower() for word in words)]
    models = [entry for entry in catalog.alone() if all(word in entry.name.lower() for word in words)]
    if not options.json:
        for pair in pairs:
            print(f"pair  {pair.name}: {pair.target} with {pair.draft}", flush=True)
        for entry in models:
            print(f"model {entry.name}: {entry.reference}", flush=True)
    found = Hub().search(options.words, options.limit)
    if options.json:
        known = [{"name": pair.name, "target": pair.target, "draft": pair.draft, "why": pair.why} for pair in pairs]
        remote = [*map(asdict, found)]
        alone = [{"name": entry.name, "repository": entry.repository} for entry in models]
        print(json.dumps({"pairs": known, "models": alone, "repositories": remote}))
        return 0 if known or alone or remote else 1
    width = max((len(one.repository) for one in found), default=0)
    for one in found:
        gated = "  gated" if one.gated else ""
        print_plain(f"{one.repository:{width}}  {one.downloads:>10,} downloads{gated}")
    if not pairs and not models and not found:
        print("Nothing was found.")
        return 1
    return 0
