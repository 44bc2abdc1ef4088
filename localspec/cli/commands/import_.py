"""`localspec import`: takes a GGUF file of this machine into the list, by a link (default) or a checked copy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help=".gguf file; of a split model, any part")
    parser.add_argument("--name", default="", metavar="NAME", help="what to call it; default: the file's name")
    parser.add_argument("--role", choices=["target", "draft"], default="target", help="default: target")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--link", action="store_true", help="link to the file where it is (default)")
    how.add_argument("--copy", action="store_true", help="copy it, so that the original may go")
    parser.add_argument("--json", action="store_true", help="the new entry as JSON")


def run(options: argparse.Namespace) -> int:
    from localspec.cli.commands.pull import result_lines
    from localspec.cli.output import print_plain
    from localspec.cli.transfer import transfer_progress
    from localspec.models.installed.adopt import adopt
    from localspec.models.installed.store import Store

    with transfer_progress(0) as report:
        entry = adopt(
            options.file,
            Store(),
            name=options.name,
            role=options.role,
            copy=options.copy,
            progress=lambda name, done, size: report(name, done, size, "checking"),
        )
    if options.json:
        print(json.dumps(entry.as_dict()))
    else:
        print_plain(*result_lines([entry], entry.name))
    return 0
