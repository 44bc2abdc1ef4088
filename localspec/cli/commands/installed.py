"""`localspec use`, `list`, `rm` and `import`: the models of this machine."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from typing import Any

from rich.filesize import decimal

from localspec.cli.output import aligned, not_used, print_plain, report, transfer_progress
from localspec.errors import LocalspecError, ModelError, UsageError
from localspec.gguf import read_header
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Entry, Store
from localspec.paths import sha256_of, typed
from localspec.processes import users_of


def add_options_use(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="pair, model or GGUF file; default: say which")
    parser.add_argument("--draft", metavar="NAME|FILE", help="a draft model or head that always goes with it")
    parser.add_argument("--forget", action="store_true", help="leave the choice to localspec again")


def run_use(options: argparse.Namespace) -> int:
    from localspec.models.installed import installed
    from localspec.models.installed.installed import find_one

    if options.forget:
        if options.name or options.draft:
            raise UsageError("Give NAME or --forget, not both.")
        installed.forget()
    elif options.name:
        if options.draft:
            find_one(options.draft)
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
    from localspec.models.installed.installed import called, can_draft, same_files

    rows: list[tuple[str, ...]] = [("NAME", "ROLE", "SIZE", "QUANT", "STATE")]
    rows += [(model["name"], model["role"], "", "", "shipped with localspec") for model in _bundled()]
    default = called(found := installed.default())
    unused = {entry.name for entry in entries if not faults[entry.name] and not can_draft(entry)}
    for entry in entries:
        drafted = f"good, drafted by {entry.draft}" if entry.draft else "good"
        if entry.draft in unused or entry.name in unused:
            drafted = "good; such heads are kept and not used yet"
        if _completes(entry, faults[entry.name]):
            drafted = f"{drafted}; {NO_TEMPLATE}"
        if same := same_files(entry, entries):
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
    from localspec.models.installed.adopt import forget, is_begun, work_folder

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
        if size := forget(name):
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
            shipped = pair is not None and catalog.models[pair.target].bundled
            shipped = shipped or (name in catalog.models and catalog.models[name].bundled)
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
    from localspec.cli.commands.hub import result_lines
    from localspec.models.installed.adopt import adopt
    from localspec.models.installed.installed import twin_sentence

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
    from localspec.models.installed.adopt import find_kept

    found = find_kept(Store())
    rows = [("NAME", "SIZE", "QUANT", "KEPT BY", "FILE")]
    for one in found:
        name = f"{one.name} (here: {one.installed})" if one.installed else one.name
        rows.append((name, decimal(one.bytes), one.quant, one.program, str(one.path)))
    none = "No model of LM Studio, Ollama, llama.cpp or the hub's cache is here, and no .gguf file in Downloads."
    lines = aligned(rows) if found else [none]
    if (new := next((one for one in found if not one.installed), None)) is not None:
        role = " --role draft" if new.is_head else ""
        words = f"localspec import {shlex.quote(str(new.path))} --name {shlex.quote(new.name)}{role}"
        lines.append(f"Take one in: {words}")
    report(as_json, [asdict(one) | {"path": str(one.path)} for one in found], *lines)
    return 0 if found else 1
