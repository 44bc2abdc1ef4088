"""`localspec completion`: the script that lets a shell complete commands and options, made from their parser."""

from __future__ import annotations

import argparse
import re
import sys

SHELLS = ("bash", "zsh", "fish")
_DESCRIPTION = """\
Prints the script that completes localspec's commands and options. To use it in every new shell:

  bash  eval "$(localspec completion bash)"          in ~/.bashrc
  zsh   eval "$(localspec completion zsh)"           in ~/.zshrc, after compinit
  fish  localspec completion fish | source           in ~/.config/fish/config.fish
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")


def run(options: argparse.Namespace) -> int:
    import shtab

    from localspec.cli import COMMANDS, build_parser

    parser = build_parser(*COMMANDS)
    _complete_files(parser, shtab.FILE)
    sys.stdout.write(f"{shtab.complete(parser, options.shell).rstrip()}\n")
    return 0


def _complete_files(parser: argparse.ArgumentParser, way: object) -> None:
    """Lets arguments that are files complete to files: shtab reads an action's attribute `complete`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _complete_files(one, way)
        elif re.search("FILE|FOLDER|PATH|DIR", str(action.metavar)):
            action.complete = way  # type: ignore[attr-defined]
