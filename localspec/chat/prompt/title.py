"""A chat's title, made from its first message."""

from __future__ import annotations

import re

from localspec.chat.plain_text import plain_text

LONGEST_TITLE = 60
"""Characters of a made title."""
_MARKS = re.compile(r"^(?:[#>*+\-`~\s]|\d+[.)]\s)+|[*_`~\s]+$")
"""Markdown around a line: headings, quotes, bullets, fences, emphasis."""


def title_from(text: str) -> str:
    """The first line that says something, on one line, cut at a word; "" for a text without any."""
    for line in plain_text(text).splitlines():
        words = _MARKS.sub("", line).replace("**", "").replace("`", "").split()
        if any(character.isalnum() for word in words for character in word):
            return _cut(" ".join(words))
    rest = " ".join(plain_text(text).split())
    return _cut(rest)


def _cut(line: str) -> str:
    if len(line) <= LONGEST_TITLE:
        return line
    short = line[: LONGEST_TITLE - 1]
    at = short.rfind(" ")
    return (short[:at] if at > LONGEST_TITLE // 2 else short).rstrip(" ,;:.") + "…"
