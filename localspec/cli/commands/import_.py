"""`localspec import`: takes a GGUF file of this machine into the list, by a link (default) or a checked copy."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict

from localspec.errors import UsageError
from localspec.paths import typed


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", type=typed, help=".gguf file; of a split model, any part")
    parser.add_argument("--find", action="store_true", help="list models that other programs of this machine keep")
    parser.add_argument("--name", default="", metavar="NAME", help="what to call it; default: the file's name")
    parser.add_argument("--role", choices=["target", "draft"], default="target", help="default: target")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--link", action="store_true", help="link to the file where it is (default)")
    how.add_argument("--copy", action="store_true", help="copy it, so that the original may go")
    parser.add_argument("--json", action="store_true", help="the new entry as JSON")


def run(options: argparse.Namespace) -> int:
    from localspec.cli.commands.pull import result_lines
    from localspec.cli.output import print_plain, transfer_progress
    from localspec.models.installed.adopt import adopt
    from localspec.models.installed.installed import twin_sentence
    from localspec.models.installed.store import Store

    if options.find:
        if options.file is not None:
            raise UsageError("Give FILE or --find, not both.")
        return _find(options.json)
    if options.file is None:
        raise UsageError("FILE is missing.", "`localspec import --find` lists what other programs keep.")
    store = Store()
    with transfer_progress(0) as report:
        entry = adopt(
            options.file,
            store,
            name=options.name,
            role=options.role,
            copy=options.copy,
            progress=lambda name, done, size: report(name, done, size, "checking"),
        )
    if options.json:
        print(json.dumps(entry.as_dict()))
    else:
        twin = twin_sentence(entry, store.entries())
        print_plain(*result_lines([entry], entry.name), *([twin] if twin else []))
    return 0


def _find(as_json: bool) -> int:
    """Lists what other programs keep; exit code 1 if that is nothing."""
    from rich.filesize import decimal

    from localspec.cli.output import print_plain, print_rows
    from localspec.models.installed.adopt import find_kept
    from localspec.models.installed.store import Store

    found = find_kept(Store())
    if as_json:
        print(json.dumps([asdict(one) | {"path": str(one.path)} for one in found]))
    elif found:
        rows = [("NAME", "SIZE", "QUANT", "KEPT BY", "FILE")]
        for one in found:
            name = f"{one.name} (here: {one.installed})" if one.installed else one.name
            rows.append((name, decimal(one.bytes), one.quant, one.program, str(one.path)))
        print_rows(rows)
        new = next((one for one in found if not one.installed), None)
        if new is not None:
            role = " --role draft" if new.is_head else ""
            words = f"localspec import {shlex.quote(str(new.path))} --name {shlex.quote(new.name)}{role}"
            print_plain(f"Take one in: {words}")
    else:
        print("No model of LM Studio, Ollama, llama.cpp or the hub's cache is here, and no .gguf file in Downloads.")
    return 0 if found else 1
