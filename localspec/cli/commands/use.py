"""`localspec use`: the model that answers where none is named."""

from __future__ import annotations

import argparse

from localspec.chat.plain_text import plain_text
from localspec.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="pair, model or GGUF file; default: say which")
    parser.add_argument("--draft", metavar="NAME|FILE", help="a draft model or head that always goes with it")
    parser.add_argument("--forget", action="store_true", help="leave the choice to localspec again")


def run(options: argparse.Namespace) -> int:
    from localspec.models.installed import installed
    from localspec.models.installed.installed import find_one

    if options.forget:
        if options.name or options.draft:
            raise UsageError("Give NAME or --forget, not both.")
        installed.forget()
    elif options.name:
        if options.draft:
            find_one(options.draft)
        installed.choose(options.name, options.draft)
    elif options.draft:
        raise UsageError("--draft goes with a model.", "Try: localspec use NAME --draft NAME")
    found = installed.default()
    if found.fault:
        print(plain_text(found.fault))
    with_draft = f" with {found.draft}" if found.draft else ""
    print(plain_text(f"{installed.called(found)}{with_draft} answers where no model is named."))
    return 0
