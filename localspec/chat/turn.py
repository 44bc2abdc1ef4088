"""One turn of a conversation, as chat templates are given it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from localspec.chat.reply.tool import ToolCall
from localspec.errors import UsageError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    """One of `ROLES`."""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant's message calls."""
    tool_call_id: str = ""
    """Of the call whose result a tool's message is."""
    name: str = ""
    """Of the tool whose result it is, or of who speaks; "" = not said."""
    reasoning: str = ""
    """What the assistant thought before it answered."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"A message has role {self.role!r}; it must be one of {', '.join(ROLES)}.")

    def as_dict(self) -> dict[str, Any]:
        """As chat templates expect it; what is not said is left out."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        for call in self.tool_calls:
            told = call.as_call()  # arguments as data, which templates write as JSON; none go in as the text they are
            with contextlib.suppress(ValueError, RecursionError):
                told["function"]["arguments"] = json.loads(call.arguments)
            found.setdefault("tool_calls", []).append(told)
        more = {"tool_call_id": self.tool_call_id, "name": self.name, "reasoning_content": self.reasoning}
        more["thinking"] = self.reasoning  # gpt-oss's word for it
        found.update({key: value for key, value in more.items() if value})
        return found


PARAGRAPH = "\n\n"
"""Stands in a text of several rounds between what two of them say."""
CANCELLED = "Cancelled by the user."
"""What a model is told of a call that was under way, or waited for the user's word, when the user ended the answer."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that an answer asked for, and what came of it. An answer with calls has rounds: in each but the last the
    model says something, perhaps, and calls tools; in the next it has read their results."""

    call: ToolCall
    result: str
    """What the model is told: the result, or what went wrong."""
    round: int = 0
    """Calls of one round have the same number; it rises within an answer."""
    said: int = 0
    """Characters that the answer's text had when its round ended."""
    thought: int = 0
    """The same of its thoughts."""
    failed: bool = False
    """Whether the tool did not do what it was called for."""
    seconds: float = 0.0


def rounds(content: str, reasoning: str, calls: Sequence[MadeCall]) -> tuple[list[Message], str, str]:
    """The rounds of an answer that ended in calls, as messages, each with the results after it; and what the last
    round says and thinks."""
    messages, said, thought = list[Message](), 0, 0
    for _, group in groupby(calls, key=lambda made: made.round):
        made = list(group)
        text = content[said : made[0].said].removeprefix(PARAGRAPH if said else "")
        asked = tuple(one.call for one in made)
        messages.append(Message("assistant", text, asked, reasoning=reasoning[thought : made[0].thought]))
        messages += [Message("tool", one.result, tool_call_id=one.call.id, name=one.call.name) for one in made]
        said, thought = made[0].said, made[0].thought
    return messages, content[said:].removeprefix(PARAGRAPH if said else ""), reasoning[thought:]
