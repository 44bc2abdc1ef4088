"""Tool calls as a JSON array between marks: Granite 3 and Command-R."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.chat.prompt.sealed import json_text
from localspec.chat.reply import json_span
from localspec.chat.reply.call_form import CallReader, Found, Mark, closed, names_of, object_rules
from localspec.chat.reply.call_json import Array, NoCall
from localspec.chat.reply.tool import Tool, ToolCall

_NUMBERED = r'"tool_call_id": ?"[0-9]+", ?'
"""What Command-R7B writes before a name, as a regular expression."""


@dataclass(frozen=True)
class ArrayForm:
    """Texts around an array of objects, and the keys in each."""

    opening: str
    """Text or token before the array."""
    lead: str
    """Between it and the array; white space may stand around it."""
    closing: str
    """Text or token after the array; "" = there is none."""
    name_key: str
    argument_key: str
    first_only = False

    @property
    def openings(self) -> tuple[str, ...]:
        """What a call begins with."""
        return (self.opening,)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be tokens of their own."""
        return tuple(filter(None, (self.opening, self.closing)))

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one array."""
        return _ArrayReader(self, names_of(tools))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar: one call of these tools, or `many`."""
        calls = "object (/,\\s*/ object)*" if many else "object"
        lead = f'"\\n" {json.dumps(self.lead)} "\\n"' if self.lead else '"\\n"?'
        closing = mark(self.closing) if self.closing else '""'
        head = f"calls: {mark(self.opening)} {lead} /\\[\\s*/ {calls} /\\s*\\]/ {closing}"
        lead = _NUMBERED if self.name_key == "tool_name" else ""
        return f"{head}\n{object_rules(tools, self.argument_key, self.name_key, lead)}"

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        shown = [f'{{"{self.name_key}": {json_text(c.name)}, "{self.argument_key}": {c.arguments}}}' for c in calls]
        return f"{self.opening}{self.lead}[{', '.join(shown)}]{self.closing}"


class _ArrayReader:
    def __init__(self, form: ArrayForm, names: frozenset[str]) -> None:
        self._form, self._names = form, names
        self._array: Array | None = None

    def read(self, text: str, final: bool) -> Found:
        if self._array is None:
            at = json_span.skip_space(text, len(self._form.opening))
            lead = self._form.lead
            if text.startswith(lead, at):
                at = json_span.skip_space(text, at + len(lead))
            elif not final and lead.startswith(text[at:]):
                return Found([], None)
            if at == len(text) and not final:
                return Found([], None)
            if text[at : at + 1] != "[":
                raise NoCall(at, cut=lead.startswith(text[at:]))
            self._array = Array(at, self._names)
        parts = self._array.read(text, final) if self._array.end is None else []
        end = self._array.end
        if end is not None and self._form.closing:
            end = closed(text, end, self._form.closing, final)
        return Found(parts, end)


GRANITE = ArrayForm("<|tool_call|>", "", "", "name", "arguments")
"""`<|tool_call|>[{"name": ..., "arguments": {...}}]`: Granite 3."""
COMMAND_R7B = ArrayForm("<|START_ACTION|>", "", "<|END_ACTION|>", "tool_name", "parameters")
"""`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`: Command-R7B and A."""
COMMAND_R = ArrayForm("Action:", "```json", "```", "tool_name", "parameters")
"""`Action:`, then a fence with `[{"tool_name": ..., "parameters": {...}}]`: Command-R and R+."""
