"""The forms in which models write tool calls: how each is read while it streams, and the grammar that forces it.

A form is found by the text of the model's chat template (`dialect.py`). A reader is handed all text from the call's
opening marker on, again and again as it grows; it answers with what is new of the calls, or raises `NoCall` as soon as
the text can no longer become one. What was told of a call stays: from its first part on it is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from localspec.chat.prompt.sealed import json_text
from localspec.chat.reply import tool as json_span
from localspec.chat.reply.call_json import Array, Named, NoCall, Object, begins_name
from localspec.chat.reply.tool import CallPart, Tool, ToolCall
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


class CallReader(Protocol):
    """Reads the calls that one opening marker announces."""

    def read(self, text: str, final: bool) -> Found:
        """What is new of the calls.

        Args:
            text: all text from the opening marker on.
            final: no more text comes; then there is an end.

        Raises:
            NoCall: it is none, whatever comes, and no part of one has been told.
        """
        ...


class CallForm(Protocol):
    """How a family of models writes calls."""

    @property
    def openings(self) -> tuple[str, ...]:
        """What a call begins with."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of it that may be tokens of their own."""
        ...

    @property
    def first_only(self) -> bool:
        """A call counts only where nothing but calls has come before it."""
        ...

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one call."""
        ...

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar, `calls` the first: one call of these tools, or `many`."""
        ...


def names_of(tools: Sequence[Tool]) -> frozenset[str]:
    """What may be called."""
    return frozenset(tool.name for tool in tools)


def closed(text: str, at: int, closing: str, final: bool) -> int | None:
    """Index after a call that ends at `at`, its closing text included if it is there; None = more text is needed."""
    start = json_span.skip_space(text, at)
    rest = text[start : start + len(closing)]
    if not closing.startswith(rest):
        return at
    return start + len(rest) if rest == closing or final else None


class _ObjectReader:
    """A JSON object between an opening and, maybe, a closing text."""

    def __init__(self, openings: Sequence[str], closing: str, names: frozenset[str], sure: bool) -> None:
        """`sure`: as for `Object`."""
        self._openings, self._closing = openings, closing
        self._names, self._sure = names, sure
        self._object: Object | None = None

    def read(self, text: str, final: bool) -> Found:
        if self._object is None:
            start = json_span.skip_space(text, max(len(o) for o in self._openings if text.startswith(o)))
            if start == len(text) and not final:
                return Found([], None)
            if text[start : start + 1] != "{":
                raise NoCall(start, cut=start == len(text))
            self._object = Object(start, self._names, self._sure)
        parts = self._object.read(text, final) if self._object.end is None else []
        end = self._object.end
        if end is not None and self._closing:
            end = closed(text, end, self._closing, final)
        return Found(parts, end)


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


def argument_rules(tools: Sequence[Tool]) -> tuple[list[str], list[str]]:
    """(name of the rule for each tool's arguments, the rules)."""
    names = ["any_object" if tool.open else f"arguments_{index}" for index, tool in enumerate(tools)]
    schemas = {name: arguments_of(tool) for name, tool in zip(names, tools, strict=True)}
    return names, [f"{name}: {json_rule(schema)}" for name, schema in schemas.items()]


def object_rules(tools: Sequence[Tool], key: str, name_key: str = "name", lead: str = "", tail: str = "") -> str:
    """Rules `object` and below: {`name_key`: ..., `key`: ...} of one of the tools.

    Args:
        tools: what may be called.
        key: of the arguments.
        name_key: of the name.
        lead, tail: regular expressions of members that may stand before the name and after the arguments.
    """
    names, arguments = argument_rules(tools)
    rules = ["object: " + " | ".join(f"object_{index}" for index in range(len(tools)))]
    rules.append(rf'before: /\{{{_GAP}({lead})?"{name_key}":{_GAP}/')
    rules.append(rf'between: /,{_GAP}"{key}":{_GAP}/')
    rules.append(rf"behind: /({tail})?{_GAP}\}}/")
    for index, tool in enumerate(tools):
        rules.append(f"object_{index}: before {json.dumps(json.dumps(tool.name))} between {names[index]} behind")
    return "\n".join([*rules, *arguments])


class TaggedForm:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and localspec's own pair."""

    openings: tuple[str, ...] = ("<tool_call>",)
    closing = "</tool_call>"
    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    first_only = False

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _ObjectReader(self.openings, self.closing, names_of(tools), sure=True)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        calls = 'call ("\\n"? call)*' if many else "call"
        opening, closing = map(mark, self.markers)
        return f'calls: {calls}\ncall: {opening} "\\n"? object "\\n"? {closing}\n{object_rules(tools, "arguments")}'

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        shown = [f'{{"name": {json_text(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return "".join(f"<tool_call>{text}</tool_call>" for text in shown)


class BareForm:
    """`{"name": ..., "parameters": {...}}` and nothing else, maybe after `<|python_tag|>`: Llama 3.

    An answer that only looks like a call is told apart by its name: it must be that of a tool.
    """

    openings: tuple[str, ...] = ("<|python_tag|>", "{")
    markers: tuple[str, ...] = ("<|python_tag|>",)
    first_only = True

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _ObjectReader(("<|python_tag|>", ""), "", names_of(tools), sure=False)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        return f"calls: object\n{object_rules(tools, 'parameters')}"


class ListForm:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`: Mistral."""

    openings: tuple[str, ...] = ("[TOOL_CALLS]",)
    markers: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    first_only = False

    def __init__(self, named: bool) -> None:
        """`named`: the model writes the second of the two forms; both are read."""
        self._named = named

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _ListReader(names_of(tools))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening = mark("[TOOL_CALLS]")
        if not self._named:
            calls = 'object (", "? object)*' if many else "object"
            objects = object_rules(tools, "arguments", tail=r', ?"id": ?"[a-zA-Z0-9]+"')
            return f'calls: {opening} "[" {calls} "]"\n{objects}'
        rules = [f"calls: {'call+' if many else 'call'}"]
        rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
        names, arguments = argument_rules(tools)
        rules.append(f"id: {mark('[CALL_ID]')} /[a-zA-Z0-9]+/")
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {opening} {json.dumps(tool.name)} id? {mark('[ARGS]')} {names[index]}")
        return "\n".join([*rules, *arguments])


class _ListReader:
    _HEAD = re.compile(r"\s*([a-zA-Z0-9_.:/-]+)\s*(?:\[CALL_ID\]\s*[a-zA-Z0-9]+\s*)?(?:\[ARGS\])?\s*(?=\{)")
    _BEGUN = re.compile(r"[\sa-zA-Z0-9_.:/\[\]-]{0,300}")

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._array: Array | None = None
        self._named: Named | None = None

    def read(self, text: str, final: bool) -> Found:
        opening = len(ListForm.openings[0])
        if self._array is None and self._named is None:
            start = json_span.skip_space(text, opening)
            if text[start : start + 1] == "[":
                self._array = Array(start, self._names)
            else:
                self._begin(text, opening, final)
        if self._array is not None:
            return Found(self._array.read(text, final), self._array.end)
        if self._named is not None:
            return Found(self._named.read(text, final), self._named.end)
        return Found([], None)

    def _begin(self, text: str, opening: int, final: bool) -> None:
        """Finds where the arguments of a name start, once that can be seen."""
        found = self._HEAD.match(text, opening)
        if found is not None:
            self._named = Named(found[1], found.end(), self._names)
            return
        begun = self._BEGUN.match(text, opening)
        if begun is not None and begun.end() < len(text):
            raise NoCall(begun.end())
        if final:
            name = text[opening:].lstrip().partition("[")[0].rstrip()
            raise NoCall(len(text), cut=begins_name(name, self._names))
