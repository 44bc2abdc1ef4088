"""`localspec pull`, `search` and `suggest`: models of the hub and of the catalogue, and what drafts for a target;
`use`, `list`, `rm` and `import`: the models of this machine."""

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
from localspec.cli.output import aligned, not_used, print_plain, report, transfer_progress
from localspec.cli.parser import add_engine_settings, whole
from localspec.cli.shared import places
from localspec.errors import Cancelled, LocalspecError, ModelError, UsageError
from localspec.gguf import read_header, read_parts
from localspec.models.hub.names import RepositoryName, parse
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Entry, Store
from localspec.paths import sha256_of, typed
from localspec.processes import users_of

if TYPE_CHECKING:
    from localspec.models.hub.hub import Hub
    from localspec.models.hub.pull import PullPlan, Suggestion

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

    if options.no_draft and options.draft:
        raise UsageError(f"--no-draft and --draft {options.draft} exclude each other.", "Give one of them.")
    hub, store = Hub(offline=options.offline), Store()
    wanted = wishes(options.name, hub, draft=options.draft, role=options.role, revision=options.revision)
    if options.no_draft:
        del wanted[1:]
    catalog = None if options.no_draft else Catalog.load()
    plan = make_plan(wanted, hub, store, options.context, places(), options.cross_tokenizer, catalog, out_of_reach)
    if plan.match is not None and (unused := not_used(plan.match.method)):
        plan = replace(plan, notes=(*plan.notes, unused))
    suggestions = [] if options.no_draft else drafts_for(plan)
    before = {
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
    else:  # a draft or a head
        lines.append(f'Try: localspec run TARGET --{first.role} {quote(first.name)} "Hello"')
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
    known = [{"name": pair.name, "target": pair.target, "draft": pair.draft, "why": pair.why} for pair in pairs]
    alone = [{"name": entry.name, "repository": entry.repository} for entry in models]
    rows = [(one.repository, f"{one.downloads:>10,} downloads{'  gated' if one.gated else ''}") for one in found]
    lines = aligned(rows) if pairs or models or found else ["Nothing was found."]
    if options.json or lines:
        report(options.json, {"pairs": known, "models": alone, "repositories": [*map(asdict, found)]}, *lines)
    return 0 if pairs or models or found else 1


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


def add_options_use(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="pair, model or GGUF file; default: say which")
    parser.add_argument("--draft", metavar="NAME|FILE", help="a draft model or head that always goes with it")
    parser.add_argument("--forget", action="store_true", help="leave the choice to localspec again")


def run_use(options: argparse.Namespace) -> int:
    from localspec.models.installed import installed

    if options.forget:
        if options.name or options.draft:
            raise UsageError("Give NAME or --forget, not both.")
        installed.forget()
    elif options.name:
        if options.draft:
            installed.find_one(options.draft)
        installed.choose(options.name, options.draft)
    elif options.draft:
        raise UsageError("--draft goes with a model.", "Try: localspec use NAME --draft NAME")
    found = installed.default()
    if found.fault:
        print_plain(found.fault)
    with_draft = f" with {found.draft}" if found.draft else ""
    print_plain(f"{installed.called(found)}{with_draft} answers where no model is named.")
    return 0


def add_options_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verify", action="store_true", help="read every byte and compare sha256")
    parser.add_argument("--catalog", action="store_true", help="the pairs and models that localspec knows by name")
    parser.add_argument("--names", action="store_true", help="the names alone, a line each, as shells complete them")
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run_list(options: argparse.Namespace) -> int:
    if options.catalog:
        return _print_catalog(options.json)
    entries = Store().entries()
    if options.names:
        from localspec.models.installed.installed import names

        print("\n".join(sorted({*names(), *(entry.name for entry in entries)})))
        return 0
    faults = {entry.name: _fault(entry, options.verify) for entry in entries}
    if options.json:
        found = [
            entry.as_dict() | {"fault": fault, "completes_only": _completes(entry, fault)}
            for entry, fault in zip(entries, faults.values(), strict=True)
        ]
        facts = {"role": "endpoint", "source": "server", "path": "", "fault": ""}
        servers = [asdict(entry) | facts for entry in Catalog.load().endpoints.values()]  # no keys
        print(json.dumps(found + _bundled() + servers))
    else:
        _print_installed(entries, faults)
    return 1 if any(faults.values()) else 0


def _completes(entry: Entry, fault: str) -> bool:
    """Whether a target only completes texts: it has no chat template."""
    return entry.role == "target" and not fault and read_header(entry.path).chat_template is None


def _fault(entry: Entry, every_byte: bool) -> str:
    """What is wrong with a model, as far as its header tells or every byte; "" = it is sound."""
    if entry.fault:
        return entry.fault
    try:
        read_header(entry.path)
    except LocalspecError as error:
        return error.message.rstrip(".")
    for file in entry.files if every_byte else ():
        try:
            if sha256_of(file.path) != file.sha256:
                return f"{file.path} is damaged: its sha256 has changed"
        except OSError as error:
            return f"{file.path} cannot be read: {error.strerror}"
    return ""


def _bundled() -> list[dict[str, Any]]:
    return [
        {"name": model.name, "role": model.role, "source": "bundled", "path": str(model.path), "fault": ""}
        for model in Catalog.load().models.values()
        if model.bundled
    ]


def _print_catalog(as_json: bool) -> int:
    """Pairs first, as they are what one pulls; "~" where the size was not compared with the file yet."""
    from localspec.runtime.offered import offer_of, pace

    catalog = Catalog.load()
    if as_json:
        kinds = ("pairs", "models", "endpoints")
        print(json.dumps({kind: [*map(asdict, getattr(catalog, kind).values())] for kind in kinds}))
        return 0
    here = pace()
    rows: list[tuple[str, ...]] = [("PAIR", "TARGET", "DRAFT", "SIZE", "HERE", "LICENCE")]
    for pair in catalog.pairs.values():
        target = catalog.models[pair.target]
        offer = offer_of(catalog, pair.name)
        known = offer is not None and offer.bytes
        size = f"{'' if target.verified and offer.listed else '~'}{decimal(offer.bytes)}" if offer and known else ""
        speed = here.words(offer.read_bytes) if here and offer and offer.read_bytes and not target.bundled else ""
        unused = f" ({pair.method}: no drafter yet)" if not_used(pair.method) else ""
        rows.append((pair.name, pair.target, pair.draft + unused, size, speed, target.licence))
    print_plain(*aligned(rows))
    paired = {name for pair in catalog.pairs.values() for name in (pair.target, pair.draft)}
    alone = sorted(set(catalog.models) - paired)
    print(f"\nFetch one: localspec pull PAIR. Further models by name: {', '.join(alone) or 'none'}.")
    return 0


def _print_installed(entries: list[Entry], faults: dict[str, str]) -> None:
    from localspec.chat.prompt.prompt import NO_TEMPLATE
    from localspec.models.installed import installed

    rows: list[tuple[str, ...]] = [("NAME", "ROLE", "SIZE", "QUANT", "STATE")]
    rows += [(model["name"], model["role"], "", "", "shipped with localspec") for model in _bundled()]
    default = installed.called(found := installed.default())
    unused = {entry.name for entry in entries if not faults[entry.name] and not installed.can_draft(entry)}
    for entry in entries:
        drafted = f"good, drafted by {entry.draft}" if entry.draft else "good"
        if entry.draft in unused or entry.name in unused:
            drafted = "good; such heads are kept and not used yet"
        if _completes(entry, faults[entry.name]):
            drafted = f"{drafted}; {NO_TEMPLATE}"
        if same := installed.same_files(entry, entries):
            drafted += f"; the same file as {', '.join(same)}"
        state = faults[entry.name] or drafted
        first = "default; " if entry.name == default else ""
        rows.append((entry.name, entry.role, decimal(entry.bytes), entry.quant, first + state))
    rows += [(one.name, "endpoint", "", "", one.title) for one in Catalog.load().endpoints.values()]
    print_plain(*aligned(rows))
    if found.fault:
        print_plain(f"{found.fault} {default} answers where no model is named.")
    if not entries:
        from localspec.runtime.offered import HEADING, offered

        if offers := offered():  # as the chat's welcome has them
            print_plain("", HEADING, *aligned(offers), "localspec pull NAME fetches one.")
    broken = [name for name, fault in faults.items() if fault]
    if broken:
        print(f"localspec: {len(broken)} cannot be used; pull or import them again, or remove them.", file=sys.stderr)


def add_options_rm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="installed model, or pair of the catalogue")
    parser.add_argument("--partial", action="store_true", help="interrupted downloads instead")
    parser.add_argument("--force", action="store_true", help="also what is open, or is another model's draft")
    parser.add_argument("--json", action="store_true", help="what was removed and kept, as JSON")


def run_rm(options: argparse.Namespace) -> int:
    from localspec.models.installed.installed import forget_training, is_begun, work_folder

    if options.partial:
        return _partial(options)
    if not options.names:
        raise UsageError("There is nothing to remove.", "localspec list shows what is installed.")
    store, removed = Store(), []
    installed = {entry.name for entry in store.entries()}
    begun = [name for name in options.names if name not in installed and is_begun(name)]
    doomed = _models([name for name in options.names if name not in begun], store)
    entries = store.entries()
    for name in () if options.force else doomed:
        entry = next(entry for entry in entries if entry.name == name)
        if users := users_of({file.path for file in entry.files}):
            what = f"process {users[0].pid} ({users[0].command})"
            raise ModelError(f"{name!r} is open in {what}.", "End it first, or use --force.")
        if others := [other.name for other in entries if other.draft == name and other.name not in doomed]:
            raise ModelError(f"{name!r} is the draft of {', '.join(others)}.", "Remove that first, or use --force.")
    for name in doomed:
        for removal in store.remove(name):
            removed.append({"name": name, "path": str(removal.path), "bytes": removal.bytes, "kept": removal.kept})
            freed = f"{removal.bytes / 1e6:.1f} MB given back" if not removal.kept else f"kept: {removal.kept}"
            if not options.json:
                print_plain(f"{name}: {removal.path}: {freed}.")
    for name in dict.fromkeys([*begun, *doomed]):
        if size := forget_training(name):
            removed.append({"name": name, "path": str(work_folder(name)), "bytes": size, "kept": ""})
            if not options.json:
                print_plain(f"{name}: what it was trained with: {size / 1e6:.1f} MB given back.")
    if options.json:
        print(json.dumps(removed))
    return 0


def _models(names: list[str], store: Store) -> list[str]:
    """Entry names; a pair of the catalogue stands for its two models, as far as they are installed."""
    catalog, found = Catalog.load(), []
    for name in names:
        catalog.check_local(name)
        pair = catalog.pairs.get(name) if not any(entry.name == name for entry in store.entries()) else None
        wanted = [pair.target, pair.draft] if pair else [name]
        there = [store.find(one) for one in wanted]
        if not any(there):
            shipped = wanted[0] in catalog.models and catalog.models[wanted[0]].bundled
            why = "is shipped with localspec and goes with it" if shipped else "is not installed"
            raise ModelError(f"{name!r} {why}.", "localspec list shows what is installed.")
        found += [entry.name for entry in there if entry is not None]
        if pair is not None and len(found) > 1:
            users = [other.name for other in store.entries() if other.draft == pair.draft and other.name not in found]
            if users and pair.draft in found:
                found.remove(pair.draft)
                print(f"{pair.draft}: kept: it is the draft of {', '.join(users)} too.", file=sys.stderr)
    entries = store.entries()
    mine = {entry.draft for entry in entries if entry.name in found}
    mine -= {entry.draft for entry in entries if entry.name not in found}
    # nothing else can use them
    heads = (entry.name for entry in entries if entry.role == "head" and entry.name in mine)
    return list(dict.fromkeys([*found, *heads]))


def _partial(options: argparse.Namespace) -> int:
    """Removes what interrupted downloads have left, unless they go on at this moment."""
    from localspec.models.hub.download import remove_partials
    from localspec.models.hub.hub import Hub

    if options.names:
        raise UsageError("--partial takes no names.")
    removed = remove_partials(Hub(offline=True), Store().files)
    lines = [f"{path}: {size / 1e6:.1f} MB given back." for path, size in removed]
    data = [{"path": str(path), "bytes": size} for path, size in removed]
    report(options.json, data, *lines, f"{len(removed)} interrupted downloads removed.")
    return 0


def add_options_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", type=typed, help=".gguf file; of a split model, any part")
    parser.add_argument("--find", action="store_true", help="list models that other programs of this machine keep")
    parser.add_argument("--name", default="", metavar="NAME", help="what to call it; default: the file's name")
    parser.add_argument("--role", choices=["target", "draft"], default="target", help="default: target")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--link", action="store_true", help="link to the file where it is (default)")
    how.add_argument("--copy", action="store_true", help="copy it, so that the original may go")
    parser.add_argument("--json", action="store_true", help="the new entry as JSON")


def run_import(options: argparse.Namespace) -> int:
    from localspec.models.installed.installed import adopt, twin_sentence

    if options.find:
        if options.file is not None:
            raise UsageError("Give FILE or --find, not both.")
        return _find_kept(options.json)
    if options.file is None:
        raise UsageError("FILE is missing.", "`localspec import --find` lists what other programs keep.")
    store = Store()
    with transfer_progress(0) as tell:
        entry = adopt(
            options.file,
            store,
            name=options.name,
            role=options.role,
            copy=options.copy,
            progress=lambda name, done, size: tell(name, done, size, "checking"),
        )
    twin = twin_sentence(entry, store.entries())
    report(options.json, entry.as_dict(), *result_lines([entry], entry.name), *([twin] if twin else []))
    return 0


def _find_kept(as_json: bool) -> int:
    """Lists what other programs keep; exit code 1 if that is nothing."""
    from localspec.models.installed.installed import find_kept

    found = find_kept(Store())
    rows = [("NAME", "SIZE", "QUANT", "KEPT BY", "FILE")]
    for one in found:
        name = f"{one.name} (here: {one.installed})" if one.installed else one.name
        rows.append((name, decimal(one.bytes), one.quant, one.program, str(one.path)))
    none = "No model of LM Studio, Ollama, llama.cpp or the hub's cache is here, and no .gguf file in Downloads."
    lines = aligned(rows) if found else [none]
    if (new := next((one for one in found if not one.installed), None)) is not None:
        role = " --role draft" if new.is_head else ""
        words = f"localspec import {quote(str(new.path))} --name {quote(new.name)}{role}"
        lines.append(f"Take one in: {words}")
    report(as_json, [asdict(one) | {"path": str(one.path)} for one in found], *lines)
    return 0 if found else 1
