"""Makes the man page and the completion scripts of the command line's parser: `python packaging/shell/generate.py`.

It needs shtab and argparse-manpage (the extra `shell`) and writes into localspec/data/shell. The wheel installs what is
there, and `localspec completion` prints it. tests/packaging/test_shell.py says when it is out of date.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from localspec import __version__
from localspec.cli import COMMANDS, build_parser
from localspec.cli.completion import SCRIPTS

FOLDER = Path(__file__).parents[2] / "localspec" / "data" / "shell"
PAGE = "localspec.1"


def name_files(parser: argparse.ArgumentParser) -> None:
    """Lets arguments that are files complete to files; shtab reads `complete` of an action."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                name_files(one)
        elif "FILE" in str(action.metavar) or "PATH" in str(action.metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def main() -> None:
    """Writes all files anew."""
    parser = build_parser(*COMMANDS)
    name_files(parser)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for shell, name in SCRIPTS.items():
        (FOLDER / name).write_text(f"{shtab.complete(parser, shell).rstrip()}\n", encoding="utf-8")
    facts = {"project_name": "localspec", "version": __version__, "date": __version__, "manual_title": "localspec"}
    page = str(Manpage(parser, _data=facts))
    page = page.replace(".SH NAME\nlocalspec\n", f".SH NAME\nlocalspec \\- {parser.description}\n", 1)
    page = re.sub(r"^\.(?=[a-z])", r"\\&.", page, flags=re.MULTILINE)  # text: macros are capitals
    (FOLDER / PAGE).write_text(f"{page.rstrip()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
