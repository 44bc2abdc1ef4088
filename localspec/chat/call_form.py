"""The forms in which models write tool calls: how each is read while it streams, and the grammar that forces it.

A form is found by the text of the model's chat template (`dialect.py`). A reader is handed all text from the call's
opening marker on, again and again as it grows; it answers with the calls, or raises `NoCall` as soon as the text
can no longer become one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from localspec.chat import json_span
from localspec.chat.tool import Tool, ToolCall, is_name, new_call_id
from localspec.llama.grammar import JSON_OPTIONS

Mark = Callable[[str], str]
"""A marker's text as a grammar names it: a token, or a quoted string where it is no token of the model."""


class NoCall(Exception):
    """The text is no tool call."""

    def __init__(self, at: int) -> None:
        """`at`: where it stops to look like one; what comes before need not be looked at again. At least 1."""
        super().__init__(at)
        self.at = at


class Found(NamedTuple):
    """Complete calls at the beginning of a text."""

    calls: tuple[ToolCall, ...]
    end: int
    """Index behind the last of them."""


class CallReader(Protocol):
    """Reads the calls that one opening marker announces."""

    def read(self, text: str, final: bool) -> Found | None:
        """The calls; None = more text is needed.

        Args:
            text: all text from the opening marker on.
            final: no more text comes.

        Raises:
            NoCall: it is none, whatever comes.
        """
        ...


class CallForm(Protocol):
    """How a family of models writes calls."""

    openings: tuple[str, ...]
    """What a call begins with."""
    markers: tuple[str, ...]
    """Texts of it that may be tokens of their own."""
    first_only: bool
    """A call counts only where nothing but calls has come before it."""

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one call."""
        ...

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar, `calls` the first: one call of these tools, or `many`."""
        ...


def call_of(text: str) -> ToolCall | None:
    """The call that a JSON object with a name and arguments stands for; None = it does not."""
    found = json_span.members(text)
    if found is None or "name" not in found:
        return None
    name = json_span.parse(found["name"])
    arguments = found.get("arguments", found.get("parameters", "{}"))
    if arguments.startswith('"'):  # JSON inside a JSON string, as some models have seen it in training
        arguments = json_span.parse(arguments)
    if not isinstance(name, str) or not is_name(name) or json_span.members(arguments) is None:
        return None
    return ToolCall(new_call_id(), name, arguments)


class _ObjectReader:
    """A JSON object between an opening and, maybe, a closing text."""

    def __init__(self, openings: Sequence[str], closing: str, names: frozenset[str] | None) -> None:
        self._openings = openings
        self._closing = closing
        self._names = names
        self._span: json_span.JsonSpan | None = None
        self._found: Found | None = None

    def read(self, text: str, final: bool) -> Found | None:
        found = self._found = self._found or self._object(text)
        if found is None:
            if final:
                raise NoCall(len(text))
            return None
        at = json_span.skip_space(text, found.end) if self._closing else found.end
        rest = text[at : at + len(self._closing)]
        if not self._closing.startswith(rest):
            raise NoCall(found.end)
        if len(rest) < len(self._closing) and not final:  # at the end of an answer the closing text may be missing
            return None
        return Found(found.calls, at + len(rest))

    def _object(self, text: str) -> Found | None:
        """The call without its closing text."""
        start = json_span.skip_space(text, max(len(o) for o in self._openings if text.startswith(o)))
        if start == len(text):
            return None
        if text[start] != "{":
            raise NoCall(start)
        self._span = self._span or json_span.JsonSpan(start)
        end = self._span.end(text)
        if end is None:
            return None
        call = call_of(text[start:end])
        if call is None or (self._names is not None and call.name not in self._names):
            raise NoCall(end)
        return Found((call,), end)


def json_rule(schema: Mapping[str, Any]) -> str:
    """What stands for values of a JSON schema in a Lark grammar, with the white space that `Grammar` allows."""
    return "%json " + json.dumps({"x-guidance": JSON_OPTIONS, **schema})


def _object_rules(tools: Sequence[Tool], key: str) -> str:
    """Rules `object` and below: {"name": ..., `key`: ...} of one of the tools."""
    rules = ["object: " + " | ".join(f"object_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        head = rf'/\{{ ?"name": ?"{re.escape(tool.name).replace("/", chr(92) + "/")}", ?"{key}": ?/'
        rules.append(f'object_{index}: {head} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: {json_rule(tool.schema)}")
    return "\n".join(rules)


class TaggedForm:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and localspec's own pair."""

    openings: tuple[str, ...] = ("<tool_call>",)
    closing = "</tool_call>"
    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    first_only = False

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _ObjectReader(self.openings, self.closing, None)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        calls = 'call ("\\n"? call)*' if many else "call"
        opening, closing = map(mark, self.markers)
        return f'calls: {calls}\ncall: {opening} "\\n"? object "\\n"? {closing}\n{_object_rules(tools, "arguments")}'

    def written(self, call: ToolCall) -> str:
        """A call as the model writes it."""
        return f'<tool_call>{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}</tool_call>'


class BareForm:
    """`{"name": ..., "parameters": {...}}` and nothing else, maybe behind `<|python_tag|>`: Llama 3.

    An answer that only looks like a call is told apart by its name: it must be that of a tool.
    """

    openings: tuple[str, ...] = ("<|python_tag|>", "{")
    markers: tuple[str, ...] = ("<|python_tag|>",)
    first_only = True

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _ObjectReader(("<|python_tag|>", ""), "", frozenset(tool.name for tool in tools))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        return f"calls: object\n{_object_rules(tools, 'parameters')}"


class ListForm:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`: Mistral."""

    openings: tuple[str, ...] = ("[TOOL_CALLS]",)
    markers: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    first_only = False

    def __init__(self, named: bool) -> None:
        """`named`: the model writes the second of the two forms; both are read."""
        self._named = named

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _ListReader()

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening = mark("[TOOL_CALLS]")
        if not self._named:
            calls = 'object (", "? object)*' if many else "object"
            return f'calls: {opening} "[" {calls} "]"\n{_object_rules(tools, "arguments")}'
        rules = [f"calls: {'call+' if many else 'call'}"]
        rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {opening} {json.dumps(tool.name)} {mark('[ARGS]')} arguments_{index}")
            rules.append(f"arguments_{index}: {json_rule(tool.schema)}")
        return "\n".join(rules)


class _ListReader:
    _HEAD = re.compile(r"\s*([a-zA-Z0-9_.:/-]+)\s*(?:\[CALL_ID\]\s*[a-zA-Z0-9]+\s*)?(?:\[ARGS\])?\s*(?=\{)")
    _BEGUN = re.compile(r"[\sa-zA-Z0-9_.:/\[\]-]{0,300}")

    def __init__(self) -> None:
        self._span: json_span.JsonSpan | None = None
        self._start = 0
        self._name: str | None = None

    def read(self, text: str, final: bool) -> Found | None:
        if self._span is None:
            self._begin(text)
        end = None if self._span is None else self._span.end(text)
        if end is not None:
            calls = self._calls(text[self._start : end])
            if not calls:
                raise NoCall(end)
            return Found(calls, end)
        if final:
            raise NoCall(len(text))
        return None

    def _begin(self, text: str) -> None:
        """Finds where the JSON starts, once that can be seen."""
        opening = len(ListForm.openings[0])
        start = json_span.skip_space(text, opening)
        if text[start : start + 1] != "[":
            found = self._HEAD.match(text, opening)
            if found is None:
                begun = self._BEGUN.match(text, opening)
                if begun is not None and begun.end() < len(text):
                    raise NoCall(begun.end())
                return
            self._name, start = found[1], found.end()
        self._start, self._span = start, json_span.JsonSpan(start)

    def _calls(self, text: str) -> tuple[ToolCall, ...]:
        """The calls that an array, or one object behind a name, stands for; () = it does not."""
        if self._name is not None:
            named = is_name(self._name) and json_span.members(text) is not None
            return (ToolCall(new_call_id(), self._name, text),) if named else ()
        found = [call_of(element) for element in json_span.elements(text) or ()]
        calls = tuple(call for call in found if call is not None)
        return calls if len(calls) == len(found) else ()
