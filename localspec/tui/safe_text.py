"""Model output made harmless for a terminal: what it cannot show as itself becomes a visible sign."""

from __future__ import annotations

import re

_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
"""Characters that reorder what stands around them."""
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_TURNING}\ud800-\udfff]")


def safe(text: str) -> str:
    """The text with control characters as their pictures (ESC is ␛) and direction marks as �; tabs and line ends stay.

    Markup is no matter here: what this returns goes into `Content` pieces or segments, which are never parsed.
    """
    return _UNSAFE.sub(_picture, text)


def one_line(text: str) -> str:
    """`safe`, with line ends and tabs as signs too, for a cell of a table."""
    return safe(text).replace("\n", "↵").replace("\t", "⇥")


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
