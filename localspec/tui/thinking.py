"""Thinking blocks: `<think>…</think>` in a stream of text becomes text and thinking apart, whatever the cuts."""

from __future__ import annotations

OPENS, CLOSES = "<think>", "</think>"


class ThinkingSplit:
    """Push pieces, get (text, thinking). A block counts only at the start of an answer: later tags are text."""

    def __init__(self, inside: bool = False) -> None:
        """`inside`: the prompt has opened a block already."""
        self._state = "thinking" if inside else "start"
        self._held = ""

    def push(self, piece: str) -> tuple[str, str]:
        """What is certain by now: (text, thinking); what may be a part of a tag is kept for the next piece."""
        self._held += piece
        text = thinking = ""
        if self._state == "start":
            begun = self._held.lstrip()
            if begun.startswith(OPENS):
                self._state, self._held = "thinking", begun[len(OPENS) :].lstrip("\n")
            elif not OPENS.startswith(begun):
                self._state = "text"
        if self._state == "thinking":
            thinking = self._take_thinking()
        if self._state == "gap":  # blank lines between the block and the answer
            self._held = self._held.lstrip()
            if self._held:
                self._state = "text"
        if self._state == "text":
            text, self._held = self._held, ""
        return text, thinking

    def finish(self) -> tuple[str, str]:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        if self._state == "thinking":
            return "", held
        return ("", "") if self._state == "gap" else (held, "")

    def _take_thinking(self) -> str:
        end = self._held.find(CLOSES)
        if end >= 0:
            thinking, self._held = self._held[:end], self._held[end + len(CLOSES) :]
            self._state = "gap"
            return thinking.rstrip("\n")
        keep = next((n for n in range(len(CLOSES) - 1, 0, -1) if self._held.endswith(CLOSES[:n])), 0)
        cut = len(self._held) - keep
        thinking, self._held = self._held[:cut], self._held[cut:]
        return thinking


def joined(thinking: str, text: str) -> str:
    """The answer as the model wrote it, to go on from."""
    return (
        f"{OPENS}\n{thinking}\n{CLOSES}\n\n{text}"
        if thinking and text
        else f"{OPENS}\n{thinking}"
        if thinking
        else text
    )
