"""What a reply says and what it thinks, apart for the screen, and together again for endpoints."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.chat.dialect import THOUGHTS
from localspec.chat.reply import Content, Part, Reasoning

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
