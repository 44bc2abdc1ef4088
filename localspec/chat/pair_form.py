"""Tool calls as pairs of tags, one of a key and one of its value: GLM-4.5 and later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.call_form import CallReader, Found, Mark
from localspec.chat.call_json import NoCall
from localspec.chat.call_part import parts_of
from localspec.chat.tool import Tool, ToolCall, new_call_id
from localspec.chat.xml_form import value_of


class PairForm:
    """`<tool_call>name <arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>`, a line each."""

    openings: tuple[str, ...] = ("<tool_call>",)
    markers: tuple[str, ...] = (
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    )
    first_only = False

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one call."""
        return _PairReader({tool.name: tool.parameters for tool in tools})

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar: one call of these tools, or `many`."""
        opening, closing, key_opening, key_closing, value_opening, value_closing = map(mark, self.markers)
        rules = ["calls: call (/\\n?/ call)*" if many else "calls: call"]
        functions = " | ".join(f"function_{index}" for index in range(len(tools)))
        rules.append(f"call: {opening} ({functions}) {closing}")
        if value_closing.startswith("<"):
            rules.append(f"value: {value_opening} /(?s:.*)/ {value_closing}")
        else:
            rules.append(f"value: {value_opening} text\ntext[suffix={value_closing}]: /(?s:.*)/")
        for index, tool in enumerate(tools):
            required = tool.parameters.get("required", ())
            pairs = []
            for key in tool.parameters.get("properties", {}):
                pair = f"({key_opening} {json.dumps(key)} {key_closing} /\\n?/ value /\\n?/)"
                pairs.append(pair if key in required else pair + "?")
            if tool.open:
                pairs.append(f"({key_opening} /[^<\\n]+/ {key_closing} /\\n?/ value /\\n?/)*")
            rules.append(f"function_{index}: {json.dumps(tool.name)} /\\n?/ {' '.join(pairs)}")
        return "\n".join(rules)


class _PairReader:
    _HEAD = re.compile(r"<tool_call>\s*([^\s<]+)\s*")
    _PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
    _CLOSING = "</tool_call>"

    def __init__(self, schemas: Mapping[str, dict[str, Any]]) -> None:
        self._schemas = schemas
        self._from = 0

    def read(self, text: str, final: bool) -> Found:
        head = self._HEAD.match(text)
        if head is not None and not _begins(text[head.end() :]):
            raise NoCall(head.start(1))
        at = text.find(self._CLOSING, self._from)
        if at < 0:
            self._from = max(0, len(text) - len(self._CLOSING))
            return self._cut(text) if final else Found([], None)
        call = self._call(text[:at], cut=False)
        if call is None:
            raise NoCall(at + len(self._CLOSING))
        return Found(parts_of(call), at + len(self._CLOSING))

    def _cut(self, text: str) -> Found:
        """A call with the pairs that are complete."""
        call = self._call(text, cut=True)
        if call is None:
            raise NoCall(len(text))
        return Found(parts_of(call, whole=False), len(text))

    def _call(self, text: str, cut: bool) -> ToolCall | None:
        head = self._HEAD.match(text)
        if head is None or head[1] not in self._schemas:
            return None
        arguments, at = {}, head.end()
        properties = self._schemas[head[1]].get("properties", {})
        while at < len(text):
            found = self._PAIR.match(text, at)
            if found is None and cut and _begins(text[at:]):
                break
            if found is None:
                return None
            arguments[found[1].strip()] = value_of(found[2], properties.get(found[1].strip()))
            at = found.end()
        written = json.dumps(arguments, ensure_ascii=False)
        return ToolCall(new_call_id(), head[1], written[:-1] if cut else written)


def _begins(text: str) -> bool:
    """Whether a text is the beginning of a pair, or of what ends a call."""
    return any(text.startswith(tag) or tag.startswith(text) for tag in ("<arg_key>", "</tool_call>"))
