"""Tool calls as pairs of tags, one of a key and one of its value: GLM-4.5 and later."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from localspec.chat.reply.call_form import CallReader, Found, Mark
from localspec.chat.reply.call_json import NoCall
from localspec.chat.reply.tool import Tool
from localspec.chat.reply.value_reader import ValueReader


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


class _PairReader(ValueReader):
    HEAD = re.compile(r"<tool_call>\s*(?P<name>[^\s<]+)\s*")
    ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
    _CLOSING = "</tool_call>"

    def read(self, text: str, final: bool) -> Found:
        head = self.HEAD.match(text)
        if head is not None and not self.begins(text[head.end() :]):
            raise NoCall(head.start("name"))
        at = text.find(self._CLOSING, self._from)
        if at < 0:
            self._from = max(0, len(text) - len(self._CLOSING))
            return self._cut(text) if final else Found([], None)
        end = at + len(self._CLOSING)
        return self._whole(text[:at], end, end)

    @staticmethod
    def key(text: str) -> str:
        return text.strip()

    @staticmethod
    def begins(text: str) -> bool:
        return any(text.startswith(tag) or tag.startswith(text) for tag in ("<arg_key>", "</tool_call>"))
