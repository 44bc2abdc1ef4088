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
    _complete(parser, shtab.FILE)
    sys.stdout.write(f"{shtab.complete(parser, options.shell).rstrip()}\n")
    return 0


_NAMES = "localspec list --names 2>/dev/null"
_MODELS = {
    "bash": "_localspec_models",
    "zsh": "_localspec_models",
    "fish": f"({_NAMES}; __fish_complete_path (commandline -ct))",
    "preamble": {
        "bash": f'_localspec_models() {{\n  compgen -W "$({_NAMES})" -- "$1"\n  compgen -f -- "$1"\n}}',
        "zsh": f'_localspec_models() {{\n  compadd -- ${{(f)"$({_NAMES})"}}\n  _files\n}}',
    },
}
"""How shells complete a model: by a name of the list, or a file. Asked when it is typed, as models come and go."""
_NAMED = re.compile(r"NAME\|FILE|NAME\|PATH|\[NAME\] PROMPT|PAIR|TARGET|DRAFT")
"""What stands for a model in a help text."""


def _complete(parser: argparse.ArgumentParser, files: object) -> None:
    """Lets arguments that are models or files complete to those: shtab reads an action's attribute `complete`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _complete(one, files)
        elif _NAMED.search(str(action.metavar)) or action.dest == "names":  # those of `rm`
            action.complete = _MODELS  # type: ignore[attr-defined]
        elif re.search("FILE|FOLDER|PATH|DIR", str(action.metavar)):
            action.complete = files  # type: ignore[attr-defined]
