"""Turns the bytes of tokens into text that is safe to show: whole UTF-8 characters, no part of a stop string."""

from __future__ import annotations

import codecs


class TextStream:
    """Decodes token bytes and watches for stop strings across token boundaries.

    Text that could still turn out to be the beginning of a stop string is held back until that is known. Bytes that
    are no UTF-8 become U+FFFD, as in every other engine.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False
        """A stop string came; text after it is dropped."""

    def push(self, piece: bytes, watch: bool = True) -> str:
        """Takes one token's bytes, returns the text that may be shown now.

        Args:
            piece: the bytes.
            watch: False = a stop string neither ends nor begins in these bytes.
        """
        text = self._held + self._decoder.decode(piece)
        if not self._stop:
            return text
        if not watch:
            self._held = ""
            return text
        return self._check(text)

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        if not self._stop:
            return text
        shown = self._check(text)
        if not self.stopped:
            shown += self._held
            self._held = ""
        return shown

    def _check(self, text: str) -> str:
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        hold = max(overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0
