"""The command line: a table of commands, each in its own file, imported when it runs.

Exit codes: 0 done, 1 failed or a fork was found, 2 bad option or value, 3 a model cannot be used, 4 the prompt does
not fit the context, 5 the engine failed, 6 a model could not be fetched, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from localspec import __version__
from localspec.cli import streams
from localspec.cli.parser import CommandParser
from localspec.errors import LocalspecError

_TABLE = (
    ("help", "program", "explain localspec, or one of its commands"),
    ("run", "run", "answer a prompt (or standard input, or a file of prompts) and exit"),
    ("chat", "chat", "talk with a model, in screens or line by line"),
    ("chats", "kept", "list, search, show, export, import and remove the chats on disk"),
    ("corpus", "kept", "count, cut, clear or add to the texts that drafters search: past answers, and your files"),
    ("serve", "serve", "answer over HTTP, the way OpenAI's API does, for editors, apps and scripts"),
    ("mcp", "mcp", "list, add, remove and check servers of tools (MCP), which a model may call"),
    ("connect", "serve", "set up a coding agent (Claude Code, Codex, opencode, ...) for a running serve"),
    ("verify", "measured", "check on this machine that speculation does not change the text"),
    ("pull", "models", "fetch a pair or model, checked and planned before any big file moves"),
    ("use", "models", "choose the model that answers where none is named"),
    ("list", "models", "show what is installed, and whether it is sound"),
    ("show", "show", "explain a model: architecture, tokenizer, template, memory, what can draft for it"),
    ("check", "show", "say whether a target and a draft fit each other, and memory; or what a model alone is good for"),
    ("suggest", "models", "name drafts for a target"),
    ("rm", "models", "remove models; what something else still uses is kept"),
    ("ps", "program", "show running localspec processes and the models they have open"),
    ("stop", "program", "end a running serve, as Ctrl-C does"),
    ("import", "models", "take a GGUF file of this machine into the list"),
    ("search", "models", "find GGUF models on the hub"),
    ("tune", "measured", "find faster settings for a pair on this machine, and keep them if they surely are"),
    ("train", "train", "make a draft model for a target that is here, from its own layers and answers"),
    ("extract", "train", "write what goes into layers, and final states, of texts to a safetensors file"),
    ("completion", "program", "print a shell's completion script: bash, zsh or fish"),
    ("doctor", "measured", "show versions, backends, exact widths and costs, and what to do about bad findings"),
    (
        "bench",
        "measured",
        "measure speed, acceptance and texts of real prompts, plain and speculative; passes by width",
    ),
)
"""Each command, its file in `localspec.cli.commands`, and its line in the help."""
COMMANDS: dict[str, str] = {name: line for name, _, line in _TABLE}

WITH_DEFAULT: dict[str, tuple[str, ...]] = {"bench": ("run", "passes")}
"""Commands that have commands of their own; the first is meant where none is named."""


def part_of(command: str, name: str) -> Callable[..., Any]:
    """`add_options` or `run` of a command; in a file that several share, the command's name is at its end."""
    file = import_module(f"localspec.cli.commands.{next(file for one, file, _ in _TABLE if one == command)}")
    found: Callable[..., Any] = getattr(file, f"{name}_{command}", None) or getattr(file, name)
    return found


_EPILOG = """\
exit codes: 0 done · 1 failed, or a fork was found · 2 bad option or value · 3 a model cannot be used
            4 the prompt does not fit the context · 5 the engine failed · 6 a model could not be fetched
            130 interrupted
With no command, localspec opens a chat; localspec NAME or localspec FILE.gguf opens it with that model, and
localspec NAME "PROMPT" answers a prompt."""
_OWN_OPTIONS = ("-h", "--help", "--help-all", "--version")
"""Options of `localspec` itself; with any others the chat is meant."""


def build_parser(*with_options: str | None) -> CommandParser:
    """With the options of these commands only, so that help needs no heavy import."""
    parser = CommandParser(
        prog="localspec",
        description="Local LLM text, faster than the target model alone and provably the same.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"localspec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, line in COMMANDS.items():
        sub = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name in with_options:
            part_of(name, "add_options")(sub)
    return parser


def _run(given: list[str]) -> int:
    """Runs a line's command: without one, `run` where words follow a model's name or file, else `chat`."""
    first = given[0] if given else "--help"
    own = first.startswith("-") and any(one.startswith(first) for one in _OWN_OPTIONS)
    if first not in COMMANDS and not own:
        if not first.startswith("-"):
            from localspec.cli.shared import check_openable

            check_openable(first, COMMANDS)
        _, rest = build_parser("chat").parse_known_args(["chat", *given])
        words = "--" in given[:-1] or any(not word.startswith("-") for word in rest)  # after a model; chat takes one
        given = ["run" if words else "chat", *given]
    elif first in WITH_DEFAULT and not {*given} & {*WITH_DEFAULT[first], "-h", "--help", "--help-all"}:
        given = [first, WITH_DEFAULT[first][0], *given[1:]]
    command = given[0] if given and given[0] in COMMANDS else None
    more: list[str] = []
    if command == "connect" and "--" in given:  # they are another program's; argparse would read some of them itself
        cut = given.index("--")
        given, more = given[:cut], given[cut + 1 :]
    parser = build_parser(command)
    options = parser.parse_args(given)
    options.given, options.after_dashes = given, more
    if options.command is None:
        parser.print_help()
        return 0
    return int(part_of(options.command, "run")(options))


def main(arguments: Sequence[str] | None = None) -> int:
    """The program's edge: an error becomes a sentence and an exit code, never a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    streams.prepare()
    if not given and sys.stdin.isatty() and sys.stdout.isatty():
        given = ["chat"]
    try:
        try:
            code = _run(given)
        except SystemExit as end:  # --help and --version
            code = int(end.code or 0)
        sys.stdout.flush()
        return code
    except LocalspecError as error:
        from localspec.chat.plain_text import plain_text

        said, code = plain_text(str(error)), error.exit_code  # it may quote a file
    except KeyboardInterrupt:
        said, code = "interrupted.", 130
    except BrokenPipeError:
        streams.let_go_of_output()  # the reader is gone
        return 0
    except OSError as error:
        streams.let_go_of_output()
        name = f" {error.filename}" if error.filename else ""
        said, code = f"{error.strerror or error}{name}.", 1
    except UnicodeEncodeError as error:
        said, code = f"{error.object!r} is not UTF-8 text, as it must be there.", 2
    except MemoryError:
        hint = "A smaller model or --context needs less; `ulimit -v` may be a limit, too."
        said, code = f"There is too little memory for it. {hint}", 3
    except Exception as error:
        if os.environ.get("LOCALSPEC_DEBUG"):
            raise
        said, code = f"internal error: {error!r}. LOCALSPEC_DEBUG=1 shows where; please report it.", 1
    print(f"localspec: {said}", file=sys.stderr)
    return code
