"""`localspec check`: whether a pair fits, tokenizers and memory, without loading it, or what a model is. Exit code 1 if
it does not fit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli.commands import check_alone
from localspec.cli.output import print_plain
from localspec.cli.places import add_memory_options, fit_settings, memory_lines, places
from localspec.errors import PairError

if TYPE_CHECKING:
    from localspec.gguf import Header


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="PAIR|TARGET", help="pair, or model or GGUF file; alone, it is judged by itself"
    )
    parser.add_argument("draft", nargs="?", metavar="DRAFT", help="model or GGUF file of the draft, or a head")
    parser.add_argument("--fit", action="store_true", help="choose context, cache type and GPU layers that fit")
    parser.add_argument(
        "--cross-tokenizer", action="store_true", help="judge a draft with another tokenizer by the tokens both have"
    )
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")
    add_memory_options(parser)


def run(options: argparse.Namespace) -> int:
    from localspec.cli.unused import not_used
    from localspec.drafters.heads import loading as heads
    from localspec.gguf.split import read_parts
    from localspec.models.facts import checkpoint, pairing
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find, find_one
    from localspec.models.memory import fit
    from localspec.runtime.memory.serving import gpu_lines, serving

    target, draft = find(options.target)
    pair = Catalog.load().pairs.get(options.target)
    if options.draft is not None:
        draft = find_one(options.draft)
    elif pair is not None:
        draft = find_one(pair.draft)  # a head, too, which `find` leaves out
    if draft is None:
        return check_alone.run(options, target)
    if checkpoint.is_checkpoint(draft):
        return _check_head(options, read_parts(target), draft)
    parts, draft_parts = read_parts(target), read_parts(draft)
    match = pairing.match(parts[0], draft_parts[0], cross_tokenizer=options.cross_tokenizer)
    shared = match.shared if match.fits else pairing.match(parts[0], draft_parts[0], cross_tokenizer=True).shared
    make = fit.choose if options.fit else fit.plan
    settings, there, why = serving(fit_settings(options), target, draft, places())
    if heads.is_head(draft):
        plan = make(parts, None, replace(settings, heads=heads.shapes(parts[0], [draft])), there)
    else:
        plan = make(parts, draft_parts, settings, there)
    unused = not_used(match.method) if match.fits else ""
    if options.json:
        print(
            json.dumps({"match": replace(match, shared=shared).as_dict(), "memory": plan.as_dict(), "unused": unused})
        )
    else:
        count = ""  # the verdict or its first warning has it where it was asked for
        if shared is not None and not options.cross_tokenizer:
            count = f"{len(shared)} of the target's {shared.target_size} tokens are shared"
        notes = (f"  note: {note}" for note in (unused, count, *match.warnings) if note)
        print_plain(match.verdict, *notes, *gpu_lines(plan, why), *memory_lines(plan))
    return 0 if match.fits and plan.fits else 1


def _check_head(options: argparse.Namespace, target: Sequence[Header], path: Path) -> int:
    """A head that is no GGUF file: whether its method's own reader takes it for this target."""
    from localspec.drafters.heads import loading as heads
    from localspec.models.facts.pairing import Match
    from localspec.models.memory import fit
    from localspec.runtime.memory.serving import gpu_lines

    settings = replace(fit_settings(options), heads=heads.shapes(target[0], [path]))
    plan = (fit.choose if options.fit else fit.plan)(target, None, settings, places())
    try:
        found = heads.find(path, target[0])
        kind = heads.kind_of(path)
        match = Match(True, found.name, f"{path.name} can draft for {target[0].path.name}, as {kind.sentence}.")
    except PairError as error:
        match = Match(False, heads.kind_of(path).method, str(error))
    if options.json:
        print(json.dumps({"match": match.as_dict(), "memory": plan.as_dict(), "unused": ""}))
    else:
        print_plain(match.verdict, *gpu_lines(plan), *memory_lines(plan))
    return 0 if match.fits and plan.fits else 1
