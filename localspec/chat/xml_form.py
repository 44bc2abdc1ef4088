"""Tool calls as nested tags with plain text between them, as Qwen3-Coder and its relatives write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat import json_span
from localspec.chat.call_form import CallReader, Found, Mark, closed
from localspec.chat.call_json import NoCall
from localspec.chat.call_part import parts_of
from localspec.chat.tool import Tool, ToolCall, new_call_id


class XmlForm:
    """`<tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>`.

    A value is a string where the tool's schema says so; otherwise it is read as JSON, if it is some.
    """

    openings: tuple[str, ...] = ("<tool_call>", "<function=")
    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    first_only = False

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _XmlReader({tool.name: tool.parameters for tool in tools})

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening, closing = map(mark, self.markers)
        rules = [f"calls: {'call+' if many else 'call'}"]
        functions = " | ".join(f"function_{index}" for index in range(len(tools)))
        rules.append(f'call: {opening} "\\n" ({functions}) "\\n" {closing} "\\n"?')
        for index, tool in enumerate(tools):
            required = tool.parameters.get("required", ())
            names = []
            for number, key in enumerate(tool.parameters.get("properties", {})):
                name = f"parameter_{index}_{number}"
                names.append(name if key in required else name + "?")
                head = re.escape(f"<parameter={key}>").replace("/", r"\/")
                rules.append(rf"{name}[lazy]: /{head}\n(?s:.*)\n<\/parameter>\n/")
            if tool.open:
                rules.append(rf"parameter_{index}[lazy]: /<parameter=[^>\n]+>\n(?s:.*)\n<\/parameter>\n/")
                names.append(f"parameter_{index}*")
            head = json.dumps(f"<function={tool.name}>\n")
            rules.append(f'function_{index}: {head} {" ".join(names)} "</function>"')
        return "\n".join(rules)


class _XmlReader:
    _HEAD = re.compile(r"(<tool_call>)?\s*<function=([^>\s]*)>\s*")
    _PARAMETER = re.compile(r"<parameter=([^>]*)>(.*?)</parameter>\s*", re.DOTALL)
    _BODY_END = re.compile(r"</function>\s*")
    _CLOSING = "</tool_call>"

    def __init__(self, schemas: Mapping[str, dict[str, Any]]) -> None:
        self._schemas = schemas
        self._from = 0

    def read(self, text: str, final: bool) -> Found:
        tagged = text.startswith("<tool_call>")
        start = json_span.skip_space(text, len("<tool_call>") if tagged else 0)
        if not text.startswith("<function=", start) and not "<function=".startswith(text[start:]):
            raise NoCall(start)
        body = self._BODY_END.search(text, self._from)
        if body is None:
            self._from = max(0, len(text) - len("</function>"))
            return self._cut(text) if final else Found([], None)
        self._from = body.start()
        end: int | None = body.end()
        if tagged:
            end = closed(text, body.end(), self._CLOSING, final)
            if end is None:
                return Found([], None)
        call = self._call(text[: body.start()], cut=False)
        if call is None:
            raise NoCall(end or len(text))
        return Found(parts_of(call), end)

    def _cut(self, text: str) -> Found:
        """A call with the parameters that are complete."""
        call = self._call(text, cut=True)
        if call is None:
            raise NoCall(len(text))
        return Found(parts_of(call, whole=False), len(text))

    def _call(self, text: str, cut: bool) -> ToolCall | None:
        head = self._HEAD.match(text)
        if head is None or head[2] not in self._schemas:
            return None
        arguments, at = {}, head.end()
        properties = self._schemas[head[2]].get("properties", {})
        while at < len(text):
            found = self._PARAMETER.match(text, at)
            if found is None and cut and _begins_parameter(text[at:]):
                break
            if found is None:
                return None
            arguments[found[1]] = value_of(found[2], properties.get(found[1]))
            at = found.end()
        written = json.dumps(arguments, ensure_ascii=False)
        return ToolCall(new_call_id(), head[2], written[:-1] if cut else written)


def _begins_parameter(text: str) -> bool:
    """Whether a text that was cut is the beginning of a parameter, or of what ends a call."""
    return text.startswith("<parameter=") or any(end.startswith(text) for end in ("<parameter=", "</function>"))


def value_of(text: str, schema: object) -> object:
    """A parameter's value; its text stands between two newlines that are not part of it."""
    text = text.removeprefix("\n").removesuffix("\n")
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json_span.parse(text)
    except (ValueError, RecursionError):
        return text
