"""`localspec check`: whether a pair fits, tokenizers and memory, without loading it, or what a model is. Exit code 1 if
it does not fit."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec.cli.output import not_used, print_plain
from localspec.cli.places import add_memory_options, fit_settings, places
from localspec.errors import ModelError, PairError, UsageError
from localspec.methods import COPYING

if TYPE_CHECKING:
    from localspec.gguf import Header
    from localspec.models.facts.pairing import Match
    from localspec.models.memory.fit import MemoryPlan


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
    from localspec.drafters.heads import loading as heads
    from localspec.gguf.split import read_parts
    from localspec.models.facts import pairing
    from localspec.models.facts.heads import is_checkpoint
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find, find_one
    from localspec.models.memory import fit
    from localspec.runtime.placement import serving

    target, draft = find(options.target)
    pair = Catalog.load().pairs.get(options.target)
    if options.draft is not None:
        draft = find_one(options.draft)
    elif pair is not None:
        draft = find_one(pair.draft)  # a head, too, which `find` leaves out
    if draft is None:
        return _check_alone(options, target)
    parts, drafts, shared = read_parts(target), None, None
    if is_checkpoint(draft):
        match, settings, there, why = _of_published(parts[0], draft), fit_settings(options), places(), ""
    else:
        drafts = read_parts(draft)
        match = pairing.match(parts[0], drafts[0], cross_tokenizer=options.cross_tokenizer)
        shared = match.shared if match.fits else pairing.match(parts[0], drafts[0], cross_tokenizer=True).shared
        settings, there, why = serving(fit_settings(options), target, draft, places())
    if drafts is None or heads.is_head(draft):
        settings, drafts = replace(settings, heads=heads.shapes(parts[0], [draft])), None
    plan = (fit.choose if options.fit else fit.plan)(parts, drafts, settings, there)
    unused = not_used(match.method) if match.fits else ""
    if options.json:
        found = replace(match, shared=shared).as_dict()
        print(json.dumps({"match": found, "memory": plan.as_dict(), "unused": unused}))
    else:
        count = ""  # the verdict or its first warning has it where it was asked for
        if shared is not None and not options.cross_tokenizer:
            count = f"{len(shared)} of the target's {shared.target_size} tokens are shared"
        notes = (f"  note: {note}" for note in (unused, count, *match.warnings) if note)
        print_plain(match.verdict, *notes, *_memory_lines(plan, why))
    return 0 if match.fits and plan.fits else 1


def _of_published(target: Header, path: Path) -> Match:
    """Whether the own reader of the method of a head that is no GGUF file takes it for this target."""
    from localspec.drafters.heads import loading as heads
    from localspec.models.facts.pairing import Match

    kind = heads.kind_of(path)
    try:
        name = heads.find(path, target).name
    except PairError as error:
        return Match(False, kind.method, str(error))
    return Match(True, name, f"{path.name} can draft for {target.path.name}, as {kind.sentence}.")


def _memory_lines(plan: MemoryPlan, unused: str) -> list[str]:
    """A memory plan: which GPU has what, a line per model and device, and a verdict."""
    from localspec.runtime.placement import gpu_lines

    lines = [
        f"{share.model} on {share.place}: {decimal(share.total)} (weights {decimal(share.weights)}, "
        f"cache {decimal(share.cache)}, computing {decimal(share.compute)})"
        for share in plan.shares
        if share.total
    ]
    return [*gpu_lines(plan, unused), *lines, f"{plan.sentence()} {plan.doubt}".rstrip()]


def _check_alone(options: argparse.Namespace, path: Path) -> int:
    """The verdict on a model without a draft: what it is, whether it loads and fits, what drafts for it, and whether
    that is exact. Exit code 1 if it does not load or fit.

    Raises:
        UsageError: it drafts for another model, which is to be named.
    """
    from localspec.cli.commands.show import Explained
    from localspec.drafters.heads.loading import kind_of
    from localspec.gguf.split import read_parts
    from localspec.llama.model import Model, check_text_model
    from localspec.models.hub.pull import candidates, suggest
    from localspec.models.installed.catalog import Catalog
    from localspec.models.memory import fit
    from localspec.runtime.placement import serving

    kind = kind_of(path)
    if kind.is_head:
        raise UsageError(
            f"{path.name} is {kind.sentence}, and drafts for the target it was trained for.",
            f"Name that before it: localspec check TARGET {options.target}",
        )
    check_text_model(path)
    parts = read_parts(path)
    settings, there, why = serving(fit_settings(options), path, None, places())
    plan = (fit.choose if options.fit else fit.plan)(parts, None, settings, there)
    model, refusal = Explained(parts, settings, there), ""
    facts, fault, doubt = model.facts, model.template_fault, model.facts.tokenizer["doubt"]
    try:
        Model.load(path, kernels="plain", weights=False).close()
    except ModelError as error:
        refusal = str(error)
    drafts = suggest(parts, {options.target, path.name}, Catalog.load(), candidates(path), options.target)
    if options.json:
        told: dict[str, Any] = {"file": facts.file, "kind": facts.kind, "architecture": facts.architecture}
        told |= {"loads": not refusal, "refusal": refusal, "template": facts.template is not None}
        told |= {"template_fault": fault, "tokenizer_doubt": doubt}
        told |= {"methods": [method.name for method in facts.methods if method.fits]}
        told |= {"drafts": [asdict(one) for one in drafts], "exact": (not refusal and model.exact) or {}}
        print(json.dumps(told | {"memory": plan.as_dict()}))
    else:
        chats = "" if facts.template else "; it has no chat template, so it completes text"
        copying = [method.name for method in facts.methods if method.fits and method.name in COPYING]
        known = [f"{one.draft} ({one.method}, {'here' if one.installed else 'on the hub'})" for one in drafts]
        print_plain(
            f"{path.name} is {facts.kind}: {facts.architecture}, {facts.quantisation}{chats}.",
            f"loads: {f'no: {refusal}' if refusal else 'yes'}",
            *(f"note: {note}" for note in (fault, doubt) if note),
            f"exact: {'unknown' if refusal else model.exact_words}",
            f"drafted from the text alone: {', '.join(copying) or 'no'}",
            *(f"drafted by {one}" for one in known or ["a model or head: none is known"]),
            *_memory_lines(plan, why),
        )
    return 0 if plan.fits and not refusal else 1
