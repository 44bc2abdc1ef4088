"""`localspec help`, `completion`, `ps` and `stop`: the program itself, and its processes that run."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

from rich.filesize import decimal

from localspec.cli import COMMANDS, build_parser
from localspec.cli.output import aligned, print_plain
from localspec.cli.parser import did_you_mean
from localspec.errors import LocalspecError, UsageError
from localspec.processes import running, servers


def add_options_help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="what to explain; default: localspec itself")


def run_help(options: argparse.Namespace) -> int:
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


def add_options_ps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run_ps(options: argparse.Namespace) -> int:
    from localspec.models.installed.store import Store

    found = running()
    if options.json:
        print(json.dumps([process.as_dict() for process in found]))
        return 0
    names = {file.path: entry.name for entry in Store().entries() for file in entry.files}
    at = {process.pid: process.at for process in found if process.at}
    busy = {process.pid for process in found if process.target}
    rows = [("PID", "COMMAND", "AT", "TARGET", "DRAFT", "CONTEXT", "MEMORY", "RUNNING")]
    for process in found:
        if not process.target and process.pid in busy:
            continue  # its models say it
        models = [names.get(Path(path), Path(path).name) if path else "-" for path in (process.target, process.draft)]
        context = str(process.context or "-")
        seconds = max(0, int(time.time() - process.started))
        since = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        where, memory = at.get(process.pid, "-"), process.memory()
        taken = decimal(memory) if memory else "-"
        rows.append((str(process.pid), process.command, where, models[0], models[1], context, taken, since))
    print_plain(*aligned(rows))
    return 0


_LOOK_SECONDS = 0.1  # how often it is looked whether the server has ended


def add_options_stop(parser: argparse.ArgumentParser) -> None:
    text = "its model, port or socket file; default: the one that runs"
    parser.add_argument("server", nargs="?", metavar="NAME|PORT", help=text)


def run_stop(options: argparse.Namespace) -> int:
    found, word = servers(), options.server
    if not found:
        raise LocalspecError("No server of yours runs.", "`localspec serve` starts one.")
    meant = [one for one in found if word is None or word == one.at] or [one for one in found if word == one.name]
    listed = ", ".join(f"{one.name} at {one.at}" for one in meant or found)
    if not meant:
        raise LocalspecError(f"No server of yours is at {word!r}, or has a model of that name.", f"Running: {listed}.")
    if len(meant) > 1:
        raise UsageError(f"Several servers run: {listed}.", "Say which one: localspec stop PORT")
    (server,) = meant
    words = f"The server of {server.name} at {server.at} (process {server.pid})"
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended by itself meanwhile
    except PermissionError:
        raise LocalspecError(f"{words} is another user's, who alone can end it.") from None
    while server in servers():
        time.sleep(_LOOK_SECONDS)
    print_plain(f"{words} has ended.")
    return 0
