"""A long answer in segments: only the last one is parsed again while text streams in, whatever the length before it.

Cuts fall on blank lines between blocks. What has none (a long code block, table or paragraph) is cut at `HARD`
characters, and the next segment reopens the code block or repeats the head of the table. Where the cuts fall is a
function of the text alone, not of how it arrived.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SOFT = 600
"""Characters a segment has before it ends at the next blank line."""
HARD = 2_400
"""Characters after which it is cut in any case."""

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_TABLE_RULE = re.compile(r" {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")


class Cut(NamedTuple):
    """The first segment of a text that is long enough for one."""

    segment: str
    """Markdown that stands alone."""
    rest: str
    """What is left, with what must be opened again in front of it."""


def cut(text: str) -> Cut | None:
    """The first segment; None = the text is not long enough, or more must be known."""
    if len(text) <= SOFT:
        return None
    place, fence, table = 0, "", ""
    previous = ""
    for line in text.splitlines(keepends=True):
        end = place + len(line)
        blank = not previous.strip()
        if place >= SOFT and not fence and blank and line[:1].strip():
            return Cut(text[:place], text[place:])
        if end > HARD:
            return _hard(text, place, line, fence, table)
        fence = _fence_after(line, fence)
        table = _table_after(line, previous, table)
        previous = line
        place = end
    return None


def segments(text: str) -> list[str]:
    """All segments of a whole text; at least one."""
    found = []
    while (first := cut(text)) is not None:
        found.append(first.segment)
        text = first.rest
    return [*found, text]


def _hard(text: str, place: int, line: str, fence: str, table: str) -> Cut:
    """Cuts before the line that goes too far, or inside it when it is all there is."""
    if place < SOFT:  # one very long line
        space = text.rfind(" ", place + 1, HARD)
        place = space + 1 if space > SOFT else HARD
        ending = "\n"
    else:
        ending = ""
    if fence:
        mark = _FENCE.match(fence)
        assert mark is not None
        return Cut(text[:place] + ending + mark[1] + "\n", fence + text[place:])
    return Cut(text[:place], (table if line.lstrip().startswith("|") else "") + text[place:])


def _fence_after(line: str, fence: str) -> str:
    """The opening line of the code block that is open after this line; "" = none."""
    mark = _FENCE.match(line)
    if not mark:
        return fence
    if not fence:
        return line if mark[1][0] == "~" or "`" not in mark[2] else ""
    opened = _FENCE.match(fence)
    assert opened is not None
    closes = mark[1].startswith(opened[1]) and not mark[2].strip()
    return "" if closes else fence


def _table_after(line: str, previous: str, table: str) -> str:
    """Head and rule of the table this line belongs to; "" = none."""
    if not line.strip():
        return ""
    if not table and "|" in previous and _TABLE_RULE.match(line):
        return previous + line
    return table
