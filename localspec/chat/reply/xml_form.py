"""Tool calls as tags with plain text between them: Qwen3-Coder and its relatives, GLM-4.5 and later."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from localspec.chat.reply import tool as json_span
from localspec.chat.reply.call_form import CallReader, Found, Mark, closed
from localspec.chat.reply.call_json import NoCall, begins_name
from localspec.chat.reply.tool import Tool, ToolCall, new_call_id, parts_of

# Reads a call whose arguments are plain texts, each after its key: what the XML forms of several families share.


class ValueReader(ABC):
    """Reads one call; a form says how it looks and where it ends."""

    HEAD: ClassVar[re.Pattern[str]]
    """All before the arguments; its group `name` is the tool's name."""
    ARGUMENT: ClassVar[re.Pattern[str]]
    """One argument: a group of its key, and one of its text."""

    def __init__(self, schemas: Mapping[str, dict[str, Any]]) -> None:
        """`schemas`: of the tools' parameters, by the tools' names."""
        self._schemas = schemas
        self._from = 0
        """Where the end of the call is looked for next."""

    @abstractmethod
    def read(self, text: str, final: bool) -> Found:
        """See `call_form.CallReader`."""

    @staticmethod
    @abstractmethod
    def begins(text: str) -> bool:
        """Whether a text that was cut is the beginning of an argument, or of what ends a call."""

    @staticmethod
    def key(text: str) -> str:
        """A key as it is written."""
        return text

    def _whole(self, text: str, end: int | None, after: int) -> Found:
        """The call in a text without what ends it.

        Args:
            text: up to what ends the call.
            end: of the call; None = what comes next belongs to it.
            after: how much is no call, if this is none.

        Raises:
            NoCall: it is none.
        """
        call = self._call(text, cut=False)
        if call is None:
            raise NoCall(after)
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
            key = self.key(found[1])
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
        return json_span.parse(text)
    except (ValueError, RecursionError):
        return text


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


# Tool calls as pairs of tags, one of a key and one of its value: GLM-4.5 and later.


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
