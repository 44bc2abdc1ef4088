"""The man page, made from the command line's parser: `python packaging/channels/man_page.py` prints it.

It needs localspec and argparse-manpage.
"""

from __future__ import annotations

import re

from argparse_manpage.manpage import Manpage

from localspec import __version__
from localspec.cli import COMMANDS, build_parser


def main() -> None:
    """Prints the page."""
    parser = build_parser(*COMMANDS)
    facts = {"project_name": "localspec", "version": __version__, "date": __version__, "manual_title": "localspec"}
    page = str(Manpage(parser, _data=facts))
    page = page.replace(".SH NAME\nlocalspec\n", f".SH NAME\nlocalspec \\- {parser.description}\n", 1)
    page = re.sub(r"^\.(?=[a-z])", r"\\&.", page, flags=re.MULTILINE)  # text: macros are capitals
    print(page.rstrip())


if __name__ == "__main__":
    main()
