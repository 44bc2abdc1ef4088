"""The forms in which models write tool calls: how each is read while it streams, and the grammar that forces it.

A form is found by the text of the model's chat template (`dialect.py`). A reader is handed all text from the call's
opening marker on, again and again as it grows; it answers with what is new of the calls, or raises `NoCall` as soon as
the text can no longer become one. What was told of a call stays: from its first part on it is one.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from localspec.chat.prompt.sealed import json_text
from localspec.chat.reply.call_json import Arguments, Array, NoCall, Object, begins_name
from localspec.chat.reply.tool import CallBegun, CallEnded, CallPart, Tool, ToolCall, new_call_id, skip_space
from localspec.errors import UsageError
from localspec.grammar.grammar import JSON_OPTIONS, LARGE, bound, fault, loosened

_GAP = r"( |\n{1,2}[ \t]{0,20})?"
"""White space that may stand around a call's name, as in `JSON_OPTIONS`: no more, so that it ends."""

Mark = Callable[[str], str]
"""A marker's text as a grammar names it: a token, or a quoted string where it is no token of the model."""


class Found(NamedTuple):
    """What a reader makes of a text."""

    parts: list[CallPart]
    """What is new of the calls."""
    end: int | None
    """Index after the last of them; None = more text is needed."""


class CallReader(ABC):
    """Reads the calls that one opening marker announces."""

    @abstractmethod
    def read(self, text: str, final: bool) -> Found:
        """What is new of the calls.

        Args:
            text: all text from the opening marker on.
            final: no more text comes; then there is an end.

        Raises:
            NoCall: it is none, whatever comes, and no part of one has been told.
        """


class CallForm(ABC):
    """How a family of models writes calls."""

    first_only = False
    """A call counts only where nothing but calls has come before it."""

    @property
    @abstractmethod
    def openings(self) -> tuple[str, ...]:
        """Texts with which a call begins."""

    @property
    @abstractmethod
    def markers(self) -> tuple[str, ...]:
        """Texts of it that may be tokens of their own."""

    @abstractmethod
    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one call."""

    @abstractmethod
    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar, `calls` the first: one call of these tools, or `many`."""


class JsonForm(CallForm):
    """A form whose calls are JSON between texts: all that differs is what stands before and after it."""

    @property
    def closings(self) -> tuple[str, ...]:
        """Texts after the JSON, in this order; each may be missing, and white space may stand before it."""
        return ()

    @abstractmethod
    def begin(self, text: str, names: frozenset[str], final: bool) -> Found | Object | Array | Arguments | None:
        """The JSON at its place; None = more text is needed. `Found` = there is none, and the call ends without.

        Args:
            text, final: as for `CallReader.read`.
            names: of the tools.

        Raises:
            NoCall: as `CallReader.read`.
        """

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _JsonReader(self, frozenset(tool.name for tool in tools))


class _JsonReader(CallReader):
    def __init__(self, form: JsonForm, names: frozenset[str]) -> None:
        self._form, self._names = form, names
        self._json: Object | Array | Arguments | None = None

    def read(self, text: str, final: bool) -> Found:
        if self._json is None:
            begun = self._form.begin(text, self._names, final)
            if begun is None:
                return Found([], None)
            if isinstance(begun, Found):
                return begun
            self._json = begun
        parts = self._json.read(text, final) if self._json.end is None else []
        end = self._json.end
        for closing in self._form.closings:
            if end is not None:
                end = closed(text, end, closing, final)
        return Found(parts, end)


def closed(text: str, at: int, closing: str, final: bool) -> int | None:
    """Index after a call that ends at `at`, its closing text included if it is there; None = more text is needed."""
    start = skip_space(text, at)
    rest = text[start : start + len(closing)]
    if not closing.startswith(rest):
        return at
    return start + len(rest) if rest == closing or final else None


def _object(text: str, at: int, names: frozenset[str], final: bool, sure: bool) -> Object | None:
    """The object after an opening that ends at `at`; `sure` as for `Object`."""
    start = skip_space(text, at)
    if start == len(text) and not final:
        return None
    if text[start : start + 1] != "{":
        raise NoCall(start, cut=start == len(text))
    return Object(start, names, sure)


def without_arguments(name: str, text: str) -> Found:
    """A call of a tool, if the text ends before its arguments."""
    return Found([CallBegun(new_call_id(), name), CallEnded(whole=False)], len(text))


def marked(text: str, markers: Sequence[str], mark: Mark) -> str:
    """A text in a grammar, the markers within it as they are named there."""
    known = sorted(markers, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, known)) + ")", text)
    return " ".join(mark(piece) if piece in known else json.dumps(piece) for piece in pieces if piece)


def json_rule(schema: Mapping[str, Any]) -> str:
    """What stands for values of a JSON schema in a Lark grammar, with the white space that `Grammar` allows.

    Raises:
        UsageError: they cannot be held to it.
    """
    if why := fault(schema):
        raise UsageError(f"The JSON schema cannot be used: {why}.")
    made = bound(schema)
    return "%json " + json.dumps({**made, "x-guidance": {**made.get("x-guidance", {}), **JSON_OPTIONS}})


def arguments_of(tool: Tool) -> dict[str, Any]:
    """The schema that a tool's arguments are held to: what can be kept of its own, unless it is strict.

    Raises:
        UsageError: it is strict, and nothing can be held to its own.
    """
    why = fault(tool.schema)
    if tool.strict and why:
        what = f"The tool {tool.name} is strict, and its parameters cannot be used: {why}."
        raise UsageError(what, "Without strict, what can be kept of them is.")
    if tool.strict or not (why or len(json.dumps(tool.schema)) > LARGE):
        return tool.schema
    most: dict[str, Any] = loosened(tool.schema)
    return {"type": "object"} if fault(most) else most


def alternatives(rule: str, tools: Sequence[Tool]) -> str:
    """One of the rules that `tool_rules` makes."""
    return " | ".join(f"{rule}_{index}" for index in range(len(tools)))


def tool_rules(rule: str, tools: Sequence[Tool], body: Callable[[Tool, str], str]) -> list[str]:
    """A rule for each tool, its `body` made of it and of the name of the rule for its arguments, and those rules."""
    names = ["any_object" if tool.open else f"arguments_{index}" for index, tool in enumerate(tools)]
    schemas = {name: arguments_of(tool) for name, tool in zip(names, tools, strict=True)}
    rules = [f"{rule}_{index}: {body(*both)}" for index, both in enumerate(zip(tools, names, strict=True))]
    return [*rules, *(f"{name}: {json_rule(schema)}" for name, schema in schemas.items())]


def text_rule(rule: str, inner: str, opening: str, closing: str) -> str:
    """Any text between two marks; a mark that is no token is a suffix of the rule `inner`."""
    if closing.startswith("<"):
        return f"{rule}: {opening} /(?s:.*)/ {closing}"
    return f"{rule}: {opening} {inner}\n{inner}[suffix={closing}]: /(?s:.*)/"


def object_rules(tools: Sequence[Tool], key: str, name_key: str = "name", lead: str = "", tail: str = "") -> str:
    """Rules `object` and below: {`name_key`: ..., `key`: ...} of one of the tools.

    Args:
        tools: what may be called.
        key: of the arguments.
        name_key: of the name.
        lead, tail: regular expressions of members that may stand before the name and after the arguments.
    """
    rules = ["object: " + alternatives("object", tools)]
    rules.append(rf'before: /\{{{_GAP}({lead})?"{name_key}":{_GAP}/')
    rules.append(rf'between: /,{_GAP}"{key}":{_GAP}/')
    rules.append(rf"behind: /({tail})?{_GAP}\}}/")

    def body(tool: Tool, arguments: str) -> str:
        return f"before {json.dumps(json.dumps(tool.name))} between {arguments} behind"

    return "\n".join([*rules, *tool_rules("object", tools, body)])


class TaggedForm(JsonForm):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and localspec's own pair."""

    openings = ("<tool_call>",)
    closings = ("</tool_call>",)
    markers = ("<tool_call>", "</tool_call>")

    def begin(self, text: str, names: frozenset[str], final: bool) -> Object | None:
        return _object(text, len("<tool_call>"), names, final, sure=True)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        calls = 'call ("\\n"? call)*' if many else "call"
        opening, closing = map(mark, self.markers)
        return f'calls: {calls}\ncall: {opening} "\\n"? object "\\n"? {closing}\n{object_rules(tools, "arguments")}'

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        shown = [f'{{"name": {json_text(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return "".join(f"<tool_call>{text}</tool_call>" for text in shown)


class BareForm(JsonForm):
    """`{"name": ..., "parameters": {...}}` and nothing else, maybe after `<|python_tag|>`: Llama 3.

    An answer that only looks like a call is told apart by its name: it must be that of a tool.
    """

    openings = ("<|python_tag|>", "{")
    markers = ("<|python_tag|>",)
    first_only = True

    def begin(self, text: str, names: frozenset[str], final: bool) -> Object | None:
        tag = self.markers[0]
        return _object(text, len(tag) if text.startswith(tag) else 0, names, final, sure=False)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        return f"calls: object\n{object_rules(tools, 'parameters')}"


class ListForm(JsonForm):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`: Mistral."""

    openings = ("[TOOL_CALLS]",)
    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _HEAD = re.compile(r"\s*([a-zA-Z0-9_.:/-]+)\s*(?:\[CALL_ID\]\s*[a-zA-Z0-9]+\s*)?(?:\[ARGS\])?\s*(?=\{)")
    _BEGUN = re.compile(r"[\sa-zA-Z0-9_.:/\[\]-]{0,300}")

    def __init__(self, named: bool) -> None:
        """`named`: the model writes the second of the two forms; both are read."""
        self._named = named

    def begin(self, text: str, names: frozenset[str], final: bool) -> Array | Arguments | None:
        opening = len("[TOOL_CALLS]")
        start = skip_space(text, opening)
        if text[start : start + 1] == "[":
            return Array(start, names)
        if (found := self._HEAD.match(text, opening)) is not None:
            return Arguments(found[1], found.end(), names)
        begun = self._BEGUN.match(text, opening)
        if begun is not None and begun.end() < len(text):
            raise NoCall(begun.end())
        if final:
            name = text[opening:].lstrip().partition("[")[0].rstrip()
            raise NoCall(len(text), cut=begins_name(name, names))
        return None

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening = mark("[TOOL_CALLS]")
        if not self._named:
            calls = 'object (", "? object)*' if many else "object"
            objects = object_rules(tools, "arguments", tail=r', ?"id": ?"[a-zA-Z0-9]+"')
            return f'calls: {opening} "[" {calls} "]"\n{objects}'
        rules = [f"calls: {'call+' if many else 'call'}", f"call: {alternatives('call', tools)}"]
        rules.append(f"id: {mark('[CALL_ID]')} /[a-zA-Z0-9]+/")

        def body(tool: Tool, arguments: str) -> str:
            return f"{opening} {json.dumps(tool.name)} id? {mark('[ARGS]')} {arguments}"

        return "\n".join([*rules, *tool_rules("call", tools, body)])
