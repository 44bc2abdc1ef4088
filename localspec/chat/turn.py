"""One turn of a conversation, as chat templates are given it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
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
            arguments: Any = call.arguments  # as data, which templates write as JSON; none goes in as the text it is
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(call.arguments)
            function = {"name": call.name, "arguments": arguments}
            found.setdefault("tool_calls", []).append({"id": call.id, "type": "function", "function": function})
        more = {"tool_call_id": self.tool_call_id, "name": self.name, "reasoning_content": self.reasoning}
        more["thinking"] = self.reasoning  # gpt-oss's word for it
        found.update({key: value for key, value in more.items() if value})
        return found
