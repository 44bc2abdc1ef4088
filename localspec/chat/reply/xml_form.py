"""Tool calls as tags with plain text between them: Qwen3-Coder and its relatives, GLM-4.5 and later."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from localspec.chat.reply.call_form import CallForm, CallReader, Found, Mark, alternatives, closed, text_rule
from localspec.chat.reply.call_json import NoCall, begins_name
from localspec.chat.reply.tool import Tool, ToolCall, new_call_id, parse, parts_of, skip_space


class ValueReader(CallReader):
    """Reads one call whose arguments are plain texts, each after its key; a form says how it looks and ends."""

    HEAD: ClassVar[re.Pattern[str]]
    """All before the arguments; its group `name` is the tool's name."""
    ARGUMENT: ClassVar[re.Pattern[str]]
    """One argument: a group of its key, and one of its text."""
    KEY_IN_SPACE = False
    """White space around a key is not part of it."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._from = 0
        """Where the end of the call is looked for next."""

    @staticmethod
    @abstractmethod
    def begins(text: str) -> bool:
        """Whether a text that was cut is the beginning of an argument, or of what ends a call."""

    def _whole(self, text: str, end: int) -> Found:
        """The call in a text without what ends it; `end`: of the call, and of what is no call, if this is none.

        Raises:
            NoCall: it is none.
        """
        call = self._call(text, cut=False)
        if call is None:
            raise NoCall(end)
        return Found(parts_of(call), end)

    def _cut(self, text: str) -> Found:
        """A call with the arguments that are complete.

        Raises:
            NoCall: it is none.
        """
        call = self._call(text, cut=True)
        if call is None:
            head = self.HEAD.match(text)
            unnamed = head is None or (head.end() == len(text) and begins_name(head["name"], frozenset(self._schemas)))
            raise NoCall(len(text), cut=unnamed)
        return Found(parts_of(call, whole=False), len(text))

    def _call(self, text: str, cut: bool) -> ToolCall | None:
        head = self.HEAD.match(text)
        if head is None or head["name"] not in self._schemas:
            return None
        arguments, at = {}, head.end()
        properties = self._schemas[head["name"]].get("properties", {})
        while at < len(text):
            found = self.ARGUMENT.match(text, at)
            if found is None and cut and self.begins(text[at:]):
                break
            if found is None:
                return None
            key = found[1].strip() if self.KEY_IN_SPACE else found[1]
            arguments[key] = _value(found[2], properties.get(key))
            at = found.end()
        written = json.dumps(arguments, ensure_ascii=False)
        return ToolCall(new_call_id(), head["name"], written[:-1] if cut else written)


def _value(text: str, schema: object) -> object:
    """A parameter's value; its text stands between two newlines that are not part of it."""
    text = text.removeprefix("\n").removesuffix("\n")
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return parse(text)
    except (ValueError, RecursionError):
        return text


class XmlForm(CallForm):
    """`<tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>`.

    A value is a string where the tool's schema says so; otherwise it is read as JSON, if it is some.
    """

    openings = ("<tool_call>", "<function=")
    markers = ("<tool_call>", "</tool_call>")

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _XmlReader(tools)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening, closing = map(mark, self.markers)
        rules = [f"calls: {'call+' if many else 'call'}"]
        rules.append(f'call: {opening} "\\n" ({alternatives("function", tools)}) "\\n" {closing} "\\n"?')
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

    def read(self, text: str, final: bool) -> Found:
        tagged = text.startswith("<tool_call>")
        start = skip_space(text, len("<tool_call>") if tagged else 0)
        if not text.startswith("<function=", start) and not "<function=".startswith(text[start:]):
            raise NoCall(start)
        body = self._BODY_END.search(text, self._from)
        if body is None:
            self._from = max(0, len(text) - len("</function>"))
            return self._cut(text) if final else Found([], None)
        self._from = body.start()
        end = closed(text, body.end(), "</tool_call>", final) if tagged else body.end()
        return Found([], None) if end is None else self._whole(text[: body.start()], end)

    @staticmethod
    def begins(text: str) -> bool:
        return text.startswith("<parameter=") or any(end.startswith(text) for end in ("<parameter=", "</function>"))


class PairForm(CallForm):
    """`<tool_call>name <arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>`, a line each."""

    openings = ("<tool_call>",)
    markers = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _PairReader(tools)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening, closing, key_opening, key_closing, value_opening, value_closing = map(mark, self.markers)
        rules = ["calls: call (/\\n?/ call)*" if many else "calls: call"]
        rules.append(f"call: {opening} ({alternatives('function', tools)}) {closing}")
        rules.append(text_rule("value", "text", value_opening, value_closing))
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
    KEY_IN_SPACE = True
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
        return self._whole(text[:at], end)

    @staticmethod
    def begins(text: str) -> bool:
        return any(text.startswith(tag) or tag.startswith(text) for tag in ("<arg_key>", "</tool_call>"))
