"""Text that a terminal may show: what a model or a file says can neither move the cursor nor hide or reorder words.

Escape sequences go as a whole; so do C0 and C1 controls except newline and tab, and the bidirectional embeddings,
overrides and isolates (marks of direction stay: right-to-left text needs them). A carriage return becomes a newline.
Where each character counts, as in tokens and names, `pictured` shows a sign in place of what goes.
"""

from __future__ import annotations

import re

_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb{_BIDI}]")
_PICTURED = re.compile(f"{_UNSAFE.pattern[:-1]}\u200e\u200f\u061c\ud800-\udfff]")
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\x7f": "\u2421"}
_LONGEST = 4096
"""A sequence longer than that is none: its rest is shown."""
_CONTROL = f"[ -?]{{0,{_LONGEST}}}[@-~]?"
_STRING = f"[^\x07\x9c\x1b\r\n]{{0,{_LONGEST}}}[\x07\x9c]?"
"""After an escape and one of `]P_^X`: OSC, DCS, APC, PM, SOS; cut off by another escape, or by the end of a line."""
_HIDDEN = re.compile(
    rf"\x1b[ -/]{{0,{_LONGEST}}}(?:\[{_CONTROL}|[\]P_^X]{_STRING}|[0-~]?)"
    rf"|\x9b{_CONTROL}|[\x90\x98\x9d\x9e\x9f]{_STRING}|\r\n?|{_UNSAFE.pattern}"
)
"""An escape sequence, or its beginning; or a sign that is not shown. Of line ends a newline is left."""


class PlainText:
    """A stream of text made safe, piece by piece; sequences may be cut anywhere between pieces."""

    def __init__(self) -> None:
        self._held = ""  # what was hidden at the end of the last piece, and may go on

    def push(self, piece: str) -> str:
        """The part of a piece that may be shown."""
        if not self._held and not _UNSAFE.search(piece):
            return piece
        text, shown_before = self._held + piece, len(plain_text(self._held))
        self._held = next((found[0] for found in _HIDDEN.finditer(text) if found.end() == len(text)), "")
        return plain_text(text)[shown_before:]


def plain_text(text: str) -> str:
    """A whole text made safe."""
    return _HIDDEN.sub(lambda found: "\n" if found[0][0] in "\r\u2028\u2029" else "", text)


def pictured(text: str) -> str:
    """The text with control characters as pictures (ESC is ␛) and direction marks as �; tabs and line ends stay."""
    return _PICTURED.sub(lambda found: _PICTURES.get(found[0], "\ufffd"), text)


def counted_lines(text: str) -> str:
    """How many it has, in words: `1 line`, `12 lines`; one more or less newline at its end does not count."""
    number = len(text.splitlines())
    return f"{number:,} line{'s' * (number != 1)}"


def one_line(text: str) -> str:
    """`pictured`, with line ends and tabs as signs too, for a cell of a table."""
    return pictured(text).replace("\n", "↵").replace("\t", "⇥")
