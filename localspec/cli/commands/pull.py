"""`localspec pull`: plan from headers, ask, fetch, check, list."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec.cli.parser import add_engine_settings
from localspec.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from localspec.models.hub.download import PullPart
    from localspec.models.hub.hub import Hub
    from localspec.models.hub.pull import PullPlan, Suggestion
    from localspec.models.installed.store import Entry

_SUGGESTIONS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="pair or model of the catalogue, user/repo[:quant], or an address")
    parser.add_argument("--draft", default="", metavar="NAME", help="draft model to pull with it, checked against it")
    parser.add_argument("--no-draft", action="store_true", help="the model alone: no drafter is looked for")
    parser.add_argument("--cross-tokenizer", action="store_true", help="the draft may have another tokenizer")
    parser.add_argument("--role", choices=["target", "draft"], default="target", help="what NAME is; default: target")
    parser.add_argument("--revision", default="", metavar="REV", help="branch, tag or commit; default: main")
    add_engine_settings(parser, "context", told="tokens to plan memory for; default: as for run")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and fetch nothing")
    parser.add_argument("--offline", action="store_true", help="use only what is in the Hugging Face cache")
    parser.add_argument("--json", action="store_true", help="plan and result as one JSON object")


def run(options: argparse.Namespace) -> int:
    from localspec.cli.output import not_used, print_plain, transfer_progress
    from localspec.cli.places import places
    from localspec.drafters.heads.loading import find, out_of_reach
    from localspec.models.hub.hub import Hub
    from localspec.models.hub.pull import check_disk, install, make_plan, wishes
    from localspec.models.installed.catalog import Catalog
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
    before = as_dict(plan, hub, suggestions)
    if not options.json:
        print_plain(*plan_lines(plan, hub, suggestions))
    if options.dry_run:
        if options.json:
            print(json.dumps({"plan": before, "installed": []}))
        return 0
    check_disk(plan)
    if plan.missing_bytes and not options.yes:
        ask(plan)
    try:
        with transfer_progress(plan.missing_bytes) as report:
            entries = install(plan, hub, store, report, load_head=find)
    except KeyboardInterrupt:
        raise Cancelled("Stopped.", "What came so far is kept; the same command goes on there.") from None
    if options.json:
        print(json.dumps({"plan": before, "installed": [entry.as_dict() for entry in entries]}))
    else:
        print_plain(*result_lines(entries, options.name))
    return 0


def ask(plan: PullPlan) -> None:
    """Asks whether to go on.

    Raises:
        Cancelled: the answer is no.
        UsageError: it cannot ask, as there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("There is no terminal to ask on.", "-y loads without asking; --dry-run only plans.")
    fits = plan.memory.fits
    print(f"Load {decimal(plan.missing_bytes)}? [{'Y/n' if fits else 'y/N'}] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    if not (answer in ("y", "yes") or (not answer and fits)):
        raise Cancelled("Nothing was loaded.")


def as_dict(plan: PullPlan, hub: Hub, suggestions: Sequence[Suggestion]) -> dict[str, Any]:
    """The plan as plain data."""
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
    from localspec.cli.output import drafts
    from localspec.models.hub.pull import candidates, suggest
    from localspec.models.installed.catalog import Catalog

    part = plan.parts[0]
    if part.role != "target" or plan.is_pair or any(one.taken for one in plan.drafters):
        return []
    names = {part.name, part.choice.files[0].name.rsplit("/", 1)[-1]}
    found = suggest(part.headers, names, Catalog.load(), candidates())
    named = {one.name for one in plan.drafters}
    return [one for one in found if drafts(one.method) and one.draft not in named]


def plan_lines(plan: PullPlan, hub: Hub, suggestions: Sequence[Suggestion]) -> list[str]:
    """The plan for people."""
    lines = [line for part in plan.parts for line in _part_lines(part, hub)]
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


def _part_lines(part: PullPart, hub: Hub) -> list[str]:
    commit = f", commit {part.listing.commit[:12]}" if part.listing else ""
    licence = f", licence {part.licence}" if part.licence else ""
    have = part.choice.size - part.missing(hub)
    here = f" ({decimal(have)} of it here already)" if have else ""
    facts = f"{part.header.architecture}, {part.choice.quant or part.header.quantisation}{commit}{licence}"
    lines = [f"{part.role:7} {part.name}  {decimal(part.choice.size)}{here}", f"        {facts}"]
    return lines + [f"        {file.name}" for file in part.choice.files]


def result_lines(entries: list[Entry], asked: str) -> list[str]:
    """What is installed now, and how to use it."""
    lines, first = [f"installed {entry.name}: {entry.path}" for entry in entries], entries[0]
    if first.role == "target":
        lines.append(f'Try: localspec run {quote(asked if "://" not in asked else first.name)} "Hello"')
    elif first.role == "draft":
        lines.append(f'Try: localspec run TARGET --draft {quote(first.name)} "Hello"')
    else:
        lines.append(f'Try: localspec run TARGET --head {quote(first.name)} "Hello"')
    return lines
