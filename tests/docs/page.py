"""A page of the documentation: its sections, the rows of its tables, and the code it quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_HEADING = re.compile(r"^(#+) (.+)$")
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(#([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what follows it up to the next one of its level or above."""

    title: str
    level: int
    lines: list[str]

    @property
    def anchor(self) -> str:
        """What a link to it says, without the #."""
        return re.sub(r"[ -]+", "-", re.sub(r"[^\w -]", "", self.title.lower()))

    @property
    def rows(self) -> list[list[str]]:
        """Cells of the tables' rows, without headers and rules."""
        found = []
        for above, line in zip(["", *self.lines], self.lines, strict=False):
            is_rule = line.startswith("|-")
            if line.startswith("|") and not is_rule:
                cells = re.split(r"(?<!\\)\|", line.strip("|"))
                found.append([cell.strip().replace("\\|", "|") for cell in cells])
            elif is_rule and above.startswith("|"):
                found.pop()
        return found

    @property
    def shell(self) -> list[str]:
        """Lines of its blocks of shell commands."""
        found: list[str] = []
        inside = False
        for line in self.lines:
            if line.startswith("```"):
                inside = line == "```sh"
            elif inside:
                found.append(line)
        return found

    @property
    def code(self) -> list[str]:
        """What stands between backticks in its text, and its shell commands."""
        return [*(found for line in self.lines if "```" not in line for found in _CODE.findall(line)), *self.shell]

    @property
    def links(self) -> set[str]:
        """Anchors of this page that it links to."""
        return set(_LINK.findall("\n".join(self.lines)))


@cache
def sections(name: str) -> list[Section]:
    """All sections of `docs/NAME`, the page itself first; a section holds those below it."""
    found: list[Section] = []
    open_: list[Section] = []
    inside = False
    for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
        inside ^= line.startswith("```")
        heading = None if inside else _HEADING.match(line)
        if heading is not None:
            open_ = [one for one in open_ if one.level < len(heading[1])]
        for one in open_:
            one.lines.append(line)
        if heading is not None:
            open_.append(Section(heading[2], len(heading[1]), []))
            found.append(open_[-1])
    return found


def section(name: str, title: str) -> Section:
    """The section of a page with this title."""
    return next(one for one in sections(name) if one.title.strip("`") == title)


def code_of(cell: str) -> list[str]:
    """What stands between backticks in a cell."""
    return _CODE.findall(cell)
