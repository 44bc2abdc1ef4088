"""Tool calls as nested tags with plain text between them, as Qwen3-Coder and its relatives write them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from localspec.chat.reply import json_span
from localspec.chat.reply.call_form import CallReader, Found, Mark, closed
from localspec.chat.reply.call_json import NoCall
from localspec.chat.reply.tool import Tool
from localspec.chat.reply.value_reader import ValueReader


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


class _XmlReader(ValueReader):
    HEAD = re.compile(r"(<tool_call>)?\s*<function=(?P<name>[^>\s]*)>\s*")
    ARGUMENT = re.compile(r"<parameter=([^>]*)>(.*?)</parameter>\s*", re.DOTALL)
    _BODY_END = re.compile(r"</function>\s*")
    _CLOSING = "</tool_call>"

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
        return self._whole(text[: body.start()], end, end or len(text))

    @staticmethod
    def begins(text: str) -> bool:
        return text.startswith("<parameter=") or any(end.startswith(text) for end in ("<parameter=", "</function>"))
