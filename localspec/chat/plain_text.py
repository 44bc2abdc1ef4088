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
_STRING_STARTS = "]P_^X"
"""After an escape: OSC, DCS, APC, PM, SOS, each of which takes a string."""
_C1_STRINGS = "\x90\x98\x9d\x9e\x9f"
_LONGEST = 4096
"""A sequence longer than that is none: its rest is shown."""


class PlainText:
    """A stream of text made safe, piece by piece; sequences may be cut anywhere between pieces."""

    def __init__(self) -> None:
        self._within = ""
        """"" text, "escape", "control" (CSI), "string" (OSC and the like), "return" (after a carriage return)."""
        self._length = 0

    def push(self, piece: str) -> str:
        """The part of a piece that may be shown."""
        if not self._within and not _UNSAFE.search(piece):
            return piece
        return "".join(map(self._take, piece))

    def _take(self, character: str) -> str:
        if self._within == "escape":
            return self._behind_escape(character)
        if self._within == "control":
            return self._in_control(character)
        if self._within == "string":
            return self._in_string(character)
        return self._in_text(character)

    def _in_text(self, character: str) -> str:
        behind_return, self._within = self._within == "return", ""
        if character == "\r":
            self._within = "return"
            return "\n"
        if character == "\n":
            return "" if behind_return else "\n"
        if character == "\x1b":
            self._enter("escape")
        elif character == "\x9b":
            self._enter("control")
        elif character in _C1_STRINGS:
            self._enter("string")
        elif character in "\u2028\u2029":
            return "\n"
        elif not _UNSAFE.match(character):
            return character
        return ""

    def _enter(self, within: str) -> None:
        self._within, self._length = within, 0

    def _behind_escape(self, character: str) -> str:
        if character == "[":
            self._enter("control")
        elif character in _STRING_STARTS:
            self._enter("string")
        elif " " <= character <= "/":
            return self._count(character)  # intermediate bytes, such as of a choice of character set
        else:
            self._within = ""
            if not "0" <= character <= "~":
                return self._in_text(character)
        return ""

    def _in_control(self, character: str) -> str:
        if " " <= character <= "?":
            return self._count(character)
        self._within = ""
        return "" if "@" <= character <= "~" else self._in_text(character)

    def _in_string(self, character: str) -> str:
        if character in "\x07\x9c":
            self._within = ""
            return ""
        if character == "\x1b":  # of its end, or of another sequence
            self._enter("escape")
            return ""
        if character in "\r\n":
            self._within = ""
            return self._in_text(character)
        return self._count(character)

    def _count(self, character: str) -> str:
        self._length += 1
        if self._length > _LONGEST:
            self._within = ""
            return self._in_text(character)
        return ""


def plain_text(text: str) -> str:
    """A whole text made safe."""
    return PlainText().push(text)


def pictured(text: str) -> str:
    """The text with control characters as pictures (ESC is ␛) and direction marks as �; tabs and line ends stay."""
    return _PICTURED.sub(_picture, text)


def counted_lines(text: str) -> str:
    """How many it has, in words: `1 line`, `12 lines`; one more or less newline at its end does not count."""
    number = len(text.splitlines())
    return f"{number:,} line{'s' * (number != 1)}"


def one_line(text: str) -> str:
    """`pictured`, with line ends and tabs as signs too, for a cell of a table."""
    return pictured(text).replace("\n", "↵").replace("\t", "⇥")


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
