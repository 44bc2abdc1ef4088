"""Tool calls as nested tags with plain text between them, as Qwen3-Coder and its relatives write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat import json_span
from localspec.chat.call_form import CallReader, Found, Mark, NoCall
from localspec.chat.tool import Tool, ToolCall, is_name, new_call_id


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

    def read(self, text: str, final: bool) -> Found | None:
        start = json_span.skip_space(text, len("<tool_call>") if text.startswith("<tool_call>") else 0)
        if not text.startswith("<function=", start) and not "<function=".startswith(text[start:]):
            raise NoCall(start)
        body = self._BODY_END.search(text, self._from)
        if body is None:
            if final:
                raise NoCall(len(text))
            self._from = max(0, len(text) - len("</function>"))
            return None
        self._from = body.start()
        end = body.end()
        if text.startswith("<tool_call>"):
            rest = text[end : end + len(self._CLOSING)]
            if not self._CLOSING.startswith(rest):
                raise NoCall(end)
            if len(rest) < len(self._CLOSING) and not final:
                return None
            end += len(rest)
        call = self._call(text[: body.start()])
        if call is None:
            raise NoCall(end)
        return Found((call,), end)

    def _call(self, text: str) -> ToolCall | None:
        head = self._HEAD.match(text)
        if head is None or not is_name(head[2]):
            return None
        arguments, at = {}, head.end()
        properties = self._schemas.get(head[2], {}).get("properties", {})
        while at < len(text):
            found = self._PARAMETER.match(text, at)
            if found is None:
                return None
            arguments[found[1]] = _value(found[2], properties.get(found[1]))
            at = found.end()
        return ToolCall(new_call_id(), head[2], json.dumps(arguments, ensure_ascii=False))


def _value(text: str, schema: object) -> object:
    """A parameter's value; its text stands between two newlines that are not part of it."""
    text = text.removeprefix("\n").removesuffix("\n")
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json_span.parse(text)
    except (ValueError, RecursionError):
        return text
