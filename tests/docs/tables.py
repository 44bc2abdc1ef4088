"""Tables of the documentation that are printed from the program's own: `python -m tests.docs.tables` writes them.

A table follows a comment such as `<!-- table: heads -->`. Its header stays as the page has it; its rows are these.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from localspec.cli import build_parser
from localspec.kept import PLACES
from localspec.methods import TABLE
from localspec.settings import MOST, numbers_of
from localspec.types import SamplingParams
from tests.docs.page import DOCS

_TABLE = re.compile(r"(<!-- table: (.+) -->\n(?:<!-- .+ -->\n)?\|.+\n\|[-|]+\n)((?:\|.*\n)*)")

_CODE = re.compile(r"(?<![`\w])(--[a-z][a-z-]*|package\.module:Class|\S*=\S*\w)(?!`)")
"""What is code in a help text."""
_LINKS = {
    "as many as fit": "models.md#gpus",
    "several: ": "models.md#gpus",
    "on other machines": "models.md#devices-of-other-machines",
    "one GPU has all": "models.md#gpus",
    "that go to a device of their own": "models.md#gpus",
    "whose experts stay on the CPU": "models.md#gpus",
}
"""Where words of help texts lead on the page of the command line."""


def row(*cells: str) -> str:
    """A row of Markdown; an empty cell has one space."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def signs() -> Iterable[str]:
    yield row("`·`", "none", "none: it is the model's own")
    yield from (row(f"`{one.look.letter}`", one.look.hue, one.title) for one in TABLE)
    yield row("`2` to `9`, `+`", "as the letter before", "the same drafter, at that position of its draft")
    yield row("`x`", "faint", "a guess that was rejected")


def sampling_options() -> Iterable[str]:
    for one in numbers_of(SamplingParams):
        flags = ", ".join(f"`{flag} {one.symbol}`" for flag in one.flags)
        yield row(flags, f"{one.clause}; default: {one.show(one.default)}")


def options_of(title: str) -> Iterable[str]:
    """A row for each option of a group that commands share, from what `run` says of it."""
    (commands,) = (one for one in build_parser("run")._actions if isinstance(one, argparse._SubParsersAction))
    (group,) = (one for one in commands.choices["run"]._action_groups if one.title == title)
    for one in group._group_actions:
        value = "" if one.nargs == 0 else f" {one.metavar or '|'.join(one.choices or ())}"
        told = _CODE.sub(r"`\1`", (one.help or "").replace("%%", "%"))
        for words, place in _LINKS.items():
            name = words.removesuffix(": ")
            told = told.replace(words, words.replace(name, f"[{name}]({place})"))
        yield row(", ".join(f"`{flag}{value}`" for flag in one.option_strings).replace("|", "\\|"), told)


def sampling_of_chats() -> Iterable[str]:
    return (row(f"`{one.name}`", one.show(one.default), one.clause) for one in numbers_of(SamplingParams))


def sampling_fields() -> Iterable[str]:
    for one in numbers_of(SamplingParams):
        least, most, says = one.declared.least, one.declared.most, [one.clause]
        says.append(f"{least:g} to {most:g}" if most < MOST else f"{least:g} or more")
        says += [f"{value} is {ours}" for value, ours in one.declared.stands_for.items()]
        says += [f"also named `{name}`" for name in one.declared.other_names]
        yield row(f"`{one.api_name}`", "; ".join(says))


def places() -> Iterable[str]:
    return (row(f"`{one.files}`", one.what, one.format, one.limit, one.deleted) for one in PLACES)


ROWS: dict[str, Callable[[], Iterable[str]]] = {
    "signs": signs,
    "model options": partial(options_of, "models"),
    "speculation options": partial(options_of, "speculation"),
    "sampling options": sampling_options,
    "sampling fields": sampling_fields,
    "sampling of a chat": sampling_of_chats,
    "places": places,
}
"""{name of a table: what gives its rows}."""


def printed(text: str) -> str:
    """A page with its tables as the program has them."""
    return _TABLE.sub(lambda found: found[1] + "".join(ROWS[found[2]]()), text)


def pages() -> dict[Path, set[str]]:
    """{page: names of the tables that are printed into it}."""
    return {
        page: {found[2] for found in _TABLE.finditer(page.read_text("utf-8"))} for page in sorted(DOCS.glob("*.md"))
    }


if __name__ == "__main__":
    for page in pages():
        page.write_text(printed(page.read_text("utf-8")), "utf-8")
