"""`localspec check`: whether a pair fits, tokenizers and memory, without loading it, or what a model is. Exit code 1 if
it does not fit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.output import print_plain
from localspec.cli.places import add_memory_options, fit_settings, memory_lines, places
from localspec.errors import ModelError, PairError, UsageError
from localspec.methods import COPYING

if TYPE_CHECKING:
    from localspec.gguf import Header
    from localspec.models.facts.facts import Method
    from localspec.models.facts.suggestion import Suggestion


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
    from localspec.cli.output import not_used
    from localspec.drafters.heads import loading as heads
    from localspec.gguf.split import read_parts
    from localspec.models.facts import checkpoint, pairing
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find, find_one
    from localspec.models.memory import fit
    from localspec.runtime.placement import gpu_lines, serving

    target, draft = find(options.target)
    pair = Catalog.load().pairs.get(options.target)
    if options.draft is not None:
        draft = find_one(options.draft)
    elif pair is not None:
        draft = find_one(pair.draft)  # a head, too, which `find` leaves out
    if draft is None:
        return check_alone(options, target)
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
    from localspec.runtime.placement import gpu_lines

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


# `localspec check FILE`: what a model is, whether it loads and fits, what drafts for it, and whether that is exact.


def check_alone(options: argparse.Namespace, path: Path) -> int:
    """The verdict on a model without a draft; exit code 1 if it does not load or fit.

    Raises:
        UsageError: it drafts for another model, which is to be named.
    """
    from localspec.chat.prompt.template import ChatTemplate
    from localspec.cli.commands.show import exactness_of
    from localspec.gguf.split import read_parts
    from localspec.llama.model import check_text_model
    from localspec.models.facts import checkpoint
    from localspec.models.facts.facts import describe
    from localspec.models.facts.heads import draft_kind
    from localspec.models.memory import fit
    from localspec.runtime.placement import gpu_lines, serving

    kind = checkpoint.checkpoint_kind(path) if checkpoint.is_checkpoint(path) else draft_kind(read_parts(path)[0])
    if kind.is_head:
        raise UsageError(
            f"{path.name} is {kind.sentence}, and drafts for the target it was trained for.",
            f"Name that before it: localspec check TARGET {options.target}",
        )
    check_text_model(path)
    parts = read_parts(path)
    settings, there, why = serving(fit_settings(options), path, None, places())
    plan = (fit.choose if options.fit else fit.plan)(parts, None, settings, there)
    facts = describe(parts, settings, there)
    refusal = _refusal(path)
    exact, exact_words = (None if refusal else exactness_of(facts)) or ({}, "unknown")
    drafts = _drafts(options.target, parts)
    fault, doubt = ChatTemplate(parts[0].chat_template).fault, facts.tokenizer["doubt"]
    if options.json:
        told: dict[str, Any] = {"file": facts.file, "kind": facts.kind, "architecture": facts.architecture}
        told |= {"loads": not refusal, "refusal": refusal, "template": facts.template is not None}
        told |= {"template_fault": fault, "tokenizer_doubt": doubt}
        told |= {"methods": [method.name for method in facts.methods if method.fits]}
        told |= {"drafts": [one.as_dict() for one in drafts], "exact": exact, "memory": plan.as_dict()}
        print(json.dumps(told))
    else:
        chats = "" if facts.template else "; it has no chat template, so it completes text"
        print_plain(f"{path.name} is {facts.kind}: {facts.architecture}, {facts.quantisation}{chats}.")
        notes = (f"note: {note}" for note in (fault, doubt) if note)
        print_plain(f"loads: {f'no: {refusal}' if refusal else 'yes'}", *notes, f"exact: {exact_words}")
        print_plain(*_draft_lines(facts.methods, drafts), *gpu_lines(plan, why), *memory_lines(plan))
    return 0 if plan.fits and not refusal else 1


def _refusal(path: Path) -> str:
    """Why llama.cpp does not load a file; "" = it does. Its weights are not read."""
    from localspec.llama.model import Model

    try:
        Model.load(path, kernels="plain", weights=False).close()
    except ModelError as error:
        return str(error)
    return ""


def _drafts(name: str, parts: Sequence[Header]) -> list[Suggestion]:
    """Draft models and heads for it: of this machine, and of the catalogue."""
    from localspec.models.facts.suggestion import candidates, suggest
    from localspec.models.installed.catalog import Catalog

    path = parts[0].path
    return suggest(parts, {name, path.name}, Catalog.load(), candidates(path), name)


def _draft_lines(methods: Sequence[Method], drafts: Sequence[Suggestion]) -> list[str]:
    own = [method.name for method in methods if method.fits and method.name in COPYING]
    text = f"drafted from the text alone: {', '.join(own) or 'no'}"
    known = [f"drafted by {one.draft} ({one.method}, {'here' if one.installed else 'on the hub'})" for one in drafts]
    return [text, *(known or ["drafted by a model or head: none is known"])]
