"""Texts of people in which spellings of special tokens are broken by a character, on their way through a chat template.

A template is a program: it trims, splits, joins and encodes what it is given. A character in the middle of a spelling
comes through all of that. It is taken out of what the template wrote, and where it stood is remembered
(`Prompt.breaks`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from localspec.types import Prompt

BREAK = "\u2bff"
"""The character: printable, so that no encoding of Python's or Jinja's escapes it, no letter, no white space, and rare.
Where a text has it already, it is doubled."""

_RUN = re.compile(f"({BREAK}+)")
_ESCAPED = re.compile(f"[^\x00-\x7e{BREAK}]+")


class Sealed(str):
    """A text that `Marks.sealed` has seen, or one made of such texts and of marks that localspec writes."""

    __slots__ = ()


def opened(text: str) -> Prompt:
    """What a template wrote, without the characters that break spellings."""
    if BREAK not in text:
        return Prompt(text)
    parts: list[str] = []
    breaks: list[int] = []
    length = 0
    for index, part in enumerate(_RUN.split(text)):
        if index % 2:
            if len(part) % 2:
                breaks.append(length)
            part = part[: len(part) // 2]
        parts.append(part)
        length += len(part)
    return Prompt("".join(parts), tuple(breaks))


def json_text(value: Any, *, ensure_ascii: bool = True, **options: Any) -> str:
    """As `json.dumps`, with the character left as it is."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if not ensure_ascii:
        return text
    return _ESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], text)
