"""What the forms of tool calls have in common: a reader of JSON while it streams, and the grammar that forces a call.

A form is found by the text of the model's chat template (`forms.form_of`).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

from localspec.chat.reply.tool import (
    CallArguments,
    CallBegun,
    CallEnded,
    CallPart,
    JsonSpan,
    Tool,
    ToolCall,
    call_of,
    members,
    new_call_id,
    parts_of,
    skip_space,
)
from localspec.errors import UsageError
from localspec.grammar.grammar import JSON_OPTIONS, LARGE, bound, fault, loosened

_GAP = r"( |\n{1,2}[ \t]{0,20})?"
"""White space that may stand around a call's name, as in `JSON_OPTIONS`: no more, so that it ends."""
_LONGEST_HEAD = 1024
"""Characters before the arguments within which their beginning is looked for; a name has at most 128. If there are
more, the call comes in one piece. A choice."""
_TEXT = r'"[^"\\]*"'
_OTHER = rf'"(?!name"|tool_name"|arguments"|parameters")[^"\\]*"\s*:\s*(?:{_TEXT}|\d+)\s*,\s*'
_NAMED = re.compile(rf'\{{\s*(?:{_OTHER})*"(?:tool_)?name"\s*:\s*"([^"\\]*)"')
_HEAD = re.compile(rf'{_NAMED.pattern}\s*,\s*(?:{_OTHER})*"(?:arguments|parameters)"\s*:\s*(?=\{{)')
_BEGUN = re.compile(r'\s*(?:,\s*(?:"[a-z]*(?:"\s*(?::\s*)?)?)?)?')
_UNNAMED = re.compile(
    rf'\{{\s*(?:{_OTHER})*(?:"(?:(?:tool_)?name"\s*(?::\s*(?:"(?P<name>[^"\\]*))?)?'
    r'|(?!(?:tool_)?name")[^"\\]*(?:"\s*(?::\s*(?:\d*|"[^"\\]*"?\s*)?)?)?)?)?'
)
"""What may be there of an object that was cut before the end of its name."""
_MORE = re.compile(r'\s*(?:,\s*(?:"(?:[^"\\]*(?:"\s*(?::\s*(?:\d*|"(?:[^"\\]*"?\s*)?)?)?)?)?)?)?')
"""What may be there of the rest of an object that was cut."""

Mark = Callable[[str], str]
"""A marker's text as a grammar names it: a token, or a quoted string where it is no token of the model."""
Reading: TypeAlias = Generator[None, None, int]
"""Steps of reading: each yield asks for more text; the end gives the index after what was read."""


class NoCall(Exception):
    """The text is no tool call."""

    def __init__(self, at: int, cut: bool = False) -> None:
        """`at`: where it stops to look like one; what comes before need not be looked at again. `cut`: it might have
        become one, had the text gone on."""
        super().__init__(at)
        self.at, self.cut = at, cut


class CallReader:
    """Reads the calls that one opening marker announces: the steps of a form, which use its methods for JSON."""

    def __init__(self, steps: Callable[[CallReader], Reading], tools: Sequence[Tool]) -> None:
        """`steps`: they raise `NoCall` only before the first part."""
        self.tools = {tool.name: tool for tool in tools}
        """What may be called, by name."""
        self.text, self.final = "", False
        """All text from the opening marker on; whether no more comes."""
        self.parts: list[CallPart] = []
        """What is new of the calls."""
        self._steps = steps(self)

    def read(self, text: str, final: bool) -> tuple[list[CallPart], int | None]:
        """What is new of the calls, and the index after the last of them; None = more text is needed. Raises NoCall: it
        cannot become one, and no part of one has been told."""
        self.text, self.final, self.parts = text, final, []
        try:
            next(self._steps)
        except StopIteration as stop:
            return self.parts, int(stop.value)
        return self.parts, None

    def begins_name(self, text: str) -> bool:
        return any(name.startswith(text) for name in self.tools)

    def cut(self, name: str) -> int:
        """Ends a call whose text ends before its arguments."""
        self.parts += [CallBegun(new_call_id(), name), CallEnded(whole=False)]
        return len(self.text)

    def closed(self, at: int, *closings: str) -> Reading:
        """What stands after a call that ends at `at`: each may be missing, and white space may stand before it."""
        for closing in closings:
            while True:
                start = skip_space(self.text, at)
                rest = self.text[start : start + len(closing)]
                if not closing.startswith(rest):
                    break
                if rest == closing or self.final:
                    at = start + len(rest)
                    break
                yield
        return at

    def arguments(self, name: str, start: int) -> Reading:
        """The arguments of one call, whose opening bracket stands at `start`, as they are written."""
        span, known, told = JsonSpan(start), name in self.tools, start
        if known:
            self.parts.append(CallBegun(new_call_id(), name))
        while True:
            end = span.end(self.text)
            upto = len(self.text) if end is None else end
            if known and upto > told:
                self.parts.append(CallArguments(self.text[told:upto]))
                told = upto
            if self.final or end is not None:
                if not known:
                    raise NoCall(upto)
                self.parts.append(CallEnded(whole=end is not None))
                return upto
            yield

    def object(self, start: int, sure: bool = True) -> Reading:
        """`{"name": ..., "arguments": {...}}`, its opening bracket at `start`. Where the name comes first, arguments
        come as they are written. `sure`: a name makes a call; if not, the text may be an answer in JSON until the
        arguments begin."""
        span, headless = JsonSpan(start), False
        while True:
            head = None if headless else _HEAD.match(self.text, start, start + _LONGEST_HEAD)
            if head is not None and head[1] in self.tools:
                break
            headless = headless or head is not None or len(self.text) >= start + _LONGEST_HEAD
            end = span.end(self.text)
            if end is not None:
                called = call_of(self.text[start:end])
                if called is None or called[0] not in self.tools:
                    raise NoCall(end)
                self.parts += parts_of(ToolCall(new_call_id(), *called))
                return end
            if self.final:
                named = _NAMED.match(self.text, start)
                if named is not None and named[1] in self.tools and _BEGUN.fullmatch(self.text, named.end()):
                    if sure:
                        return self.cut(named[1])
                    raise NoCall(len(self.text), cut=True)
                unnamed = _UNNAMED.fullmatch(self.text, start)
                may_become = unnamed is not None and self.begins_name(unnamed["name"] or "")
                raise NoCall(len(self.text), cut=may_become)
            yield
        after = yield from self.arguments(head[1], head.end())
        while (end := span.end(self.text)) is None:
            if self.final:
                return len(self.text) if _MORE.fullmatch(self.text, after) else after
            yield
        return after if members('{"": 0' + self.text[after:end]) is None else end

    def array(self, start: int) -> Reading:
        """`[{"name": ..., "arguments": {...}}, ...]`: it ends before the first element that is no call."""
        at, calls = start + 1, 0
        while True:
            here = skip_space(self.text, at)
            mark = self.text[here : here + 1]
            if mark == "]" and calls:
                return here + 1
            if mark == "," and calls:
                here = skip_space(self.text, here + 1)
                mark = self.text[here : here + 1]
            if mark == "{" and (self.text[at:here].strip() == ",") is bool(calls):
                try:
                    at = yield from self.object(here)
                except NoCall as no_call:
                    if not calls:
                        raise
                    return len(self.text) if no_call.cut else at
                calls += 1
            elif not mark and not self.final:
                yield
            elif not calls:
                raise NoCall(here + len(mark), cut=not mark)
            else:
                return at if mark else len(self.text)


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
    def steps(self, reader: CallReader) -> Reading:
        """How the calls after one opening marker are read. Raises NoCall: there is none."""

    @abstractmethod
    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar, `calls` the first: one call of these tools, or `many`."""


# Rules of grammars


def marked(text: str, markers: Sequence[str], mark: Mark) -> str:
    """A text in a grammar, the markers within it as they are named there."""
    known = sorted(markers, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, known)) + ")", text)
    return " ".join(mark(piece) if piece in known else json.dumps(piece) for piece in pieces if piece)


def json_rule(schema: Mapping[str, Any]) -> str:
    """What stands for values of a JSON schema in a Lark grammar, with the white space that `Grammar` allows.
    Raises UsageError: they cannot be held to it.
    """
    if why := fault(schema):
        raise UsageError(f"The JSON schema cannot be used: {why}.")
    made = bound(schema)
    return "%json " + json.dumps({**made, "x-guidance": {**made.get("x-guidance", {}), **JSON_OPTIONS}})


def arguments_of(tool: Tool) -> dict[str, Any]:
    """The schema that a tool's arguments are held to: what can be kept of its own, unless it is strict.
    Raises UsageError: it is strict, and nothing can be held to its own.
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


def tool_rules(rule: str, tools: Sequence[Tool], body: Callable[[Tool, str], str]) -> str:
    """A rule for one of the tools, one for each, its `body` made of it and of the name of the rule for its arguments,
    and those for the arguments.
    """
    names = ["any_object" if tool.open else f"arguments_{index}" for index, tool in enumerate(tools)]
    schemas = {name: arguments_of(tool) for name, tool in zip(names, tools, strict=True)}
    bodies = [body(*both) for both in zip(tools, names, strict=True)]
    rules = [f"{rule}: {alternatives(rule, tools)}", *(f"{rule}_{index}: {one}" for index, one in enumerate(bodies))]
    return "\n".join([*rules, *(f"{name}: {json_rule(schema)}" for name, schema in schemas.items())])


def text_rule(rule: str, inner: str, opening: str, closing: str) -> str:
    """Any text between two marks; a mark that is no token is a suffix of the rule `inner`."""
    if closing.startswith("<"):
        return f"{rule}: {opening} /(?s:.*)/ {closing}"
    return f"{rule}: {opening} {inner}\n{inner}[suffix={closing}]: /(?s:.*)/"


def object_rules(tools: Sequence[Tool], key: str, name_key: str = "name", lead: str = "", tail: str = "") -> str:
    """Rules `object` and below: {`name_key`: ..., `key`: ...} of one of the tools.

    Args:
        key: of the arguments.
        lead, tail: regular expressions of members that may stand before the name and after the arguments.
    """
    objects = tool_rules(
        "object", tools, lambda tool, rule: f"before {json.dumps(json.dumps(tool.name))} between {rule} behind"
    )
    before = rf'before: /\{{{_GAP}({lead})?"{name_key}":{_GAP}/'
    between = rf'between: /,{_GAP}"{key}":{_GAP}/'
    return "\n".join([objects, before, between, rf"behind: /({tail})?{_GAP}\}}/"])
