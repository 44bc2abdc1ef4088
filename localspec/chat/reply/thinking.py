"""What a reply says and what it thinks, apart for the screen, and together again for endpoints."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.chat.reply.harmony import HarmonyParser
from localspec.chat.reply.reply import THOUGHTS, Content, Part, Reasoning

MARKS = THOUGHTS[0]
"""What endpoints write around thoughts that they leave in the text."""


def apart(parts: Iterable[Part]) -> tuple[str, str]:
    """(text, thinking) of what a `ReplyParser` has read."""
    text, thinking = list[str](), list[str]()
    for part in parts:
        if isinstance(part, Content):
            text.append(part.text)
        elif isinstance(part, Reasoning):
            thinking.append(part.text)
    return "".join(text), "".join(thinking)


def joined(thinking: str, text: str) -> str:
    """The answer as a model writes it, to go on from."""
    if not thinking:
        return text
    thought = f"{MARKS.opening}\n{thinking}"
    return f"{thought}\n{MARKS.closing}\n\n{text}" if text else thought


class Retelling:
    """An answer as it streams, where what a model writes is shown: gpt-oss's headers become the marks of `joined`."""

    def __init__(self, channels: bool) -> None:
        """`channels`: the answer has such headers; else it stays as it is."""
        self._parser = HarmonyParser(within=None) if channels else None
        self._thinking = False

    def push(self, text: str) -> str:
        """What is certain by now."""
        return text if self._parser is None else self._told(self._parser.push(text))

    def finish(self) -> str:
        """The rest, when no more text comes."""
        return "" if self._parser is None else self._told(self._parser.finish())

    def _told(self, parts: Iterable[Part]) -> str:
        told = ""
        for part in parts:
            if isinstance(part, Content | Reasoning):
                thinks = isinstance(part, Reasoning)
                if thinks is not self._thinking:
                    told += f"{MARKS.opening}\n" if thinks else f"\n{MARKS.closing}\n\n"
                self._thinking = thinks
                told += part.text
        return told
