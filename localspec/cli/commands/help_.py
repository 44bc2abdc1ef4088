"""`localspec help`: the help of localspec, or of one of its commands."""

from __future__ import annotations

import argparse

from localspec.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="what to explain; default: localspec itself")


def run(options: argparse.Namespace) -> int:
    from localspec.cli import COMMANDS, build_parser
    from localspec.cli.parser import did_you_mean

    if not options.words:
        build_parser().print_help()
        return 0
    name = options.words[0]
    if name not in COMMANDS:
        raise UsageError(f"There is no command {name!r}.", did_you_mean(name, COMMANDS) or "Try: localspec help")
    build_parser(name).parse_args([*options.words, "--help"])  # prints and exits
    return 0
