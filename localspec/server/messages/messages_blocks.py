"""Anthropic's content blocks, put together from the parts of an answer, and the events that say so while it streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from localspec.chat.reply.call_part import CallArguments, CallBegun, CallEnded
from localspec.chat.reply.reply import Content, Part, Reasoning

Fields = dict[str, Any]


class Blocks:
    """The blocks of one answer; one is open at a time."""

    def __init__(self) -> None:
        self.content: list[Fields] = []
        """Complete blocks, and the one that is open."""
        self._open = False
        self._arguments: list[str] = []  # of the call that is open

    def add(self, parts: Sequence[Part]) -> list[Fields]:
        """Takes parts, returns the events they bring."""
        events: list[Fields] = []
        for part in parts:
            if isinstance(part, CallBegun):
                empty = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                events += [*self.close(), self._begin(empty)]
            elif isinstance(part, CallArguments):
                self._arguments.append(part.text)
                events.append(self._delta({"type": "input_json_delta", "partial_json": part.text}))
            elif isinstance(part, CallEnded):
                self.content[-1] = self.content[-1] | {"input": _input("".join(self._arguments))}
                self._arguments = []
                events += self.close()
            else:
                events += self._add_text(part)
        return events

    def close(self) -> list[Fields]:
        """Ends the open block."""
        if not self._open:
            return []
        self._open = False
        return [{"type": "content_block_stop", "index": len(self.content) - 1}]

    def _add_text(self, part: Content | Reasoning) -> list[Fields]:
        kind = "text" if isinstance(part, Content) else "thinking"
        events: list[Fields] = []
        if not self._open or self.content[-1]["type"] != kind:
            empty = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            events += [*self.close(), self._begin(empty)]
            self.content[-1] = dict(empty)
        self.content[-1][kind] += part.text
        return [*events, self._delta({"type": f"{kind}_delta", kind: part.text})]

    def _begin(self, block: Fields) -> Fields:
        self._open = True
        self.content.append(block)
        return {"type": "content_block_start", "index": len(self.content) - 1, "content_block": block}

    def _delta(self, delta: Fields) -> Fields:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


def _input(arguments: str) -> Fields:
    """A call's arguments as data: as far as they are complete, and `{}` if they are no JSON."""
    try:
        found = from_json(arguments, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
