"""Commands about the program itself: its help, and the script that lets a shell complete its commands and options."""

from __future__ import annotations

import argparse
import re
import sys

from localspec.errors import UsageError


def add_options_help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="what to explain; default: localspec itself")


def run_help(options: argparse.Namespace) -> int:
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


SHELLS = ("bash", "zsh", "fish")
_DESCRIPTION = """\
Prints the script that completes localspec's commands and options. To use it in every new shell:

  bash  eval "$(localspec completion bash)"          in ~/.bashrc
  zsh   eval "$(localspec completion zsh)"           in ~/.zshrc, after compinit
  fish  localspec completion fish | source           in ~/.config/fish/config.fish
"""


def add_options_completion(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")


def run_completion(options: argparse.Namespace) -> int:
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
