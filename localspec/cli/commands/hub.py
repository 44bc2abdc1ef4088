"""`localspec pull`, `search` and `suggest`: models of the hub and of the catalogue, and what drafts for a target."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec.chat.text_file import check_text
from localspec.cli.output import not_used, print_plain, report, transfer_progress
from localspec.cli.parser import add_engine_settings, whole
from localspec.cli.shared import places
from localspec.errors import Cancelled, ModelError, UsageError
from localspec.gguf import read_parts
from localspec.models.hub.names import RepositoryName, parse
from localspec.models.installed.catalog import Catalog

if TYPE_CHECKING:
    from localspec.models.hub.hub import Hub
    from localspec.models.hub.pull import PullPlan, Suggestion
    from localspec.models.installed.store import Entry

_SUGGESTIONS = 3


def add_options_pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="pair or model of the catalogue, user/repo[:quant], or an address")
    parser.add_argument("--draft", default="", metavar="NAME", help="draft model to pull with it, checked against it")
    parser.add_argument("--no-draft", action="store_true", help="the model alone: no drafter is looked for")
    parser.add_argument("--cross-tokenizer", action="store_true", help="the draft may have another tokenizer")
    parser.add_argument("--role", choices=["target", "draft"], default="target", help="what NAME is; default: target")
    parser.add_argument("--revision", default="", metavar="REV", help="branch, tag or commit; default: main")
    add_engine_settings(parser, "context", text="tokens to plan memory for; default: as for run")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and fetch nothing")
    parser.add_argument("--offline", action="store_true", help="use only what is in the Hugging Face cache")
    parser.add_argument("--json", action="store_true", help="plan and result as one JSON object")


def run_pull(options: argparse.Namespace) -> int:
    from localspec.drafters.heads.head import find, out_of_reach
    from localspec.models.hub.hub import Hub
    from localspec.models.hub.pull import check_disk, install, make_plan, wishes
    from localspec.models.installed.store import Store

    if options.no_draft and options.draft:
        raise UsageError(f"--no-draft and --draft {options.draft} exclude each other.", "Give one of them.")
    hub, store = Hub(offline=options.offline), Store()
    wanted = wishes(options.name, hub, draft=options.draft, role=options.role, revision=options.revision)
    if options.no_draft:
        del wanted[1:]
    catalog = None if options.no_draft else Catalog.load()
    cross = options.cross_tokenizer
    plan = make_plan(wanted, hub, store, options.context, places(), cross, catalog, out_of_reach)
    if plan.match is not None and (unused := not_used(plan.match.method)):
        plan = replace(plan, notes=(*plan.notes, unused))
    suggestions = [] if options.no_draft else drafts_for(plan)
    before = _plan_as_dict(plan, hub, suggestions)
    if not options.json:
        print_plain(*plan_lines(plan, hub, suggestions))
    if options.dry_run:
        if options.json:
            print(json.dumps({"plan": before, "installed": []}))
        return 0
    check_disk(plan)
    if plan.missing_bytes and not options.yes:
        _ask(plan)
    try:
        with transfer_progress(plan.missing_bytes) as tell:
            entries = install(plan, hub, store, tell, load_head=find)
    except KeyboardInterrupt:
        raise Cancelled("Stopped.", "What came so far is kept; the same command goes on there.") from None
    data = {"plan": before, "installed": [entry.as_dict() for entry in entries]}
    report(options.json, data, *result_lines(entries, options.name))
    return 0


def _ask(plan: PullPlan) -> None:
    """Asks whether to go on: no is `Cancelled`, and where there is no terminal to ask on, it is a UsageError."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("There is no terminal to ask on.", "-y loads without asking; --dry-run only plans.")
    fits = plan.memory.fits
    print(f"Load {decimal(plan.missing_bytes)}? [{'Y/n' if fits else 'y/N'}] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    if not (answer in ("y", "yes") or (not answer and fits)):
        raise Cancelled("Nothing was loaded.")


def _plan_as_dict(plan: PullPlan, hub: Hub, suggestions: Sequence[Suggestion]) -> dict[str, Any]:
    return {
        "parts": [part.as_dict(hub) for part in plan.parts],
        "pair": plan.match.as_dict() if plan.match else None,
        "memory": plan.memory.as_dict(),
        "missing_bytes": plan.missing_bytes,
        "free_bytes": plan.free_bytes,
        "folder": str(plan.folder),
        "notes": list(plan.notes),
        "drafters": [asdict(one) for one in plan.drafters],
        "suggestions": [asdict(one) for one in suggestions],
    }


def drafts_for(plan: PullPlan) -> list[Suggestion]:
    """What could draft for a target that is pulled alone."""
    from localspec.models.hub.pull import candidates, suggest

    part = plan.parts[0]
    if part.role != "target" or plan.is_pair or any(one.taken for one in plan.drafters):
        return []
    names = {part.name, part.choice.files[0].name.rsplit("/", 1)[-1]}
    found = suggest(part.headers, names, Catalog.load(), candidates())
    named = {one.name for one in plan.drafters}
    return [one for one in found if not not_used(one.method) and one.draft not in named]


def plan_lines(plan: PullPlan, hub: Hub, suggestions: Sequence[Suggestion]) -> list[str]:
    lines = list[str]()
    for part in plan.parts:
        commit = f", commit {part.listing.commit[:12]}" if part.listing else ""
        licence = f", licence {part.licence}" if part.licence else ""
        have = part.choice.size - part.missing(hub)
        here = f" ({decimal(have)} of it here already)" if have else ""
        facts = f"{part.header.architecture}, {part.choice.quant or part.header.quantisation}{commit}{licence}"
        lines += [f"{part.role:7} {part.name}  {decimal(part.choice.size)}{here}", f"        {facts}"]
        lines += [f"        {file.name}" for file in part.choice.files]
    if plan.match is not None:
        lines.append(f"pair    {plan.match.verdict}")
        lines += [f"        note: {warning}" for warning in plan.match.warnings]
    lines.append(f"memory  {plan.memory.sentence()}")
    if plan.memory.doubt:
        lines.append(f"        {plan.memory.doubt}")
    lines += [f"        {note}" for note in plan.notes]
    lines += [f"drafter {one.line()}" for one in plan.drafters]
    for one in suggestions[:_SUGGESTIONS]:
        how = f"localspec run {quote(plan.parts[0].name)} --draft {quote(one.draft)}" if one.installed else one.command
        lines.append(f"draft   suggested: {one.draft}, {one.why} ({how})")
    todo = f"{decimal(plan.missing_bytes)} to load" if plan.missing_bytes else "nothing to load"
    lines.append(f"disk    {todo}, {decimal(plan.free_bytes)} free in {plan.folder}")
    return lines


def result_lines(entries: list[Entry], asked: str) -> list[str]:
    lines, first = [f"installed {entry.name}: {entry.path}" for entry in entries], entries[0]
    if first.role == "target":
        lines.append(f'Try: localspec run {quote(asked if "://" not in asked else first.name)} "Hello"')
    elif first.role == "draft":
        lines.append(f'Try: localspec run TARGET --draft {quote(first.name)} "Hello"')
    else:
        lines.append(f'Try: localspec run TARGET --head {quote(first.name)} "Hello"')
    return lines


def add_options_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="WORD", help="all must be in the name")
    parser.add_argument("--limit", type=whole(1), default=20, metavar="N", help="at most N repositories; default: 20")
    parser.add_argument("--json", action="store_true", help="what was found as JSON")


def run_search(options: argparse.Namespace) -> int:
    from localspec.models.hub.hub import Hub

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
        alone = [{"name": entry.name, "repository": entry.repository} for entry in models]
        print(json.dumps({"pairs": known, "models": alone, "repositories": [*map(asdict, found)]}))
    width = max((len(one.repository) for one in found), default=0)
    for one in () if options.json else found:
        gated = "  gated" if one.gated else ""
        print_plain(f"{one.repository:{width}}  {one.downloads:>10,} downloads{gated}")
    if pairs or models or found:
        return 0
    if not options.json:
        print("Nothing was found.")
    return 1


def add_options_suggest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="model or GGUF file; the files beside it are looked at too")
    parser.add_argument("--json", action="store_true", help="the suggestions as JSON")


def run_suggest(options: argparse.Namespace) -> int:
    from localspec.models.hub.pull import candidates, suggest
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
    lines = list[str]()
    for one in found:
        here = "here" if one.installed else "on the hub"
        length = f", {decimal(one.bytes)}" if one.bytes else ""
        doubt = f"in doubt: {one.doubt}" if one.doubt else ""
        notes = (f"  note: {note}" for note in (not_used(one.method), *one.warnings, doubt) if note)
        lines += [f"{one.draft} ({one.method}, {here}{length}): {one.why}", *notes]
        lines += [f"  {one.command}"] if not one.installed or not not_used(one.method) else []
    none = (
        f"Nothing is known that drafts for {name}. Drafters without a file draft for it unasked; "
        f"localspec train {quote(name)} makes a draft model."
    )
    data = [asdict(one) | {"unused": not_used(one.method)} for one in found]
    report(options.json, data, *(lines or [none]))
    return 0 if found else 1
