"""Tools a model may call, what a client says about calling them, and a call, whole or in parts.

JSON inside text that is still growing: where a value ends, and what its members are, byte for byte.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from localspec.errors import UsageError

_OUTSIDE = re.compile(r'[^"{}\[\]]*')
_INSIDE = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")


class JsonSpan:
    """Finds the end of one JSON object or array. Looks at every character once, however the text arrives."""

    def __init__(self, start: int) -> None:
        """`start`: where its opening bracket stands."""
        self._at, self._depth = start, 0
        self._in_string = False
        self._end: int | None = None

    def end(self, text: str) -> int | None:
        """Index after its closing bracket; None = not there yet. What was passed before must begin `text`."""
        while self._end is None:
            self._at = _after(_INSIDE if self._in_string else _OUTSIDE, text, self._at)
            mark = text[self._at : self._at + 1]
            if mark in ("", "\\"):  # the end, or half an escape
                break
            self._at += 1
            if mark == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in "{[" else -1
                self._end = self._at if self._depth <= 0 else None
        return self._end


def members(text: str) -> dict[str, str] | None:
    """The members of a JSON object, each value as the text it has there; None = it is no JSON object."""
    found: dict[str, str] = {}
    try:
        at = skip_space(text, 0)
        if text[at : at + 1] != "{" or not isinstance(parse(text), dict):
            return None
        at = skip_space(text, at + 1)
        while text[at] != "}":
            key, at = _DECODER.raw_decode(text, at)
            start = skip_space(text, skip_space(text, at) + 1)  # after the colon
            _, at = _DECODER.raw_decode(text, start)
            found[key] = text[start:at]
            at = skip_space(text, at)
            at = skip_space(text, at + 1) if text[at] == "," else at
    except (ValueError, RecursionError):
        return None
    return found


def parse(text: str) -> Any:
    """The value of a JSON text; NaN and Infinity are no JSON, nor are numbers that no float can hold."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def skip_space(text: str, at: int) -> int:
    """The first index from `at` on that is no JSON white space."""
    return _after(_SPACE, text, at)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(text)
    return float(text)


_DECODER = json.JSONDecoder(parse_constant=_finite)


_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may ask its caller to run."""

    name: str
    """Letters, digits and `_ . : / -`, at most 128."""
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the object that is passed."""
    strict: bool = False
    """Whether a call must fit the schema even where the model is free to call or not."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"A tool is named {self.name!r}; a name has 1 to 128 letters, digits, '_', '-', '.', ':' and '/'."
            )
        kind, properties = self.parameters.get("type", "object"), self.parameters.get("properties", {})
        if kind != "object" or not isinstance(properties, dict):
            raise UsageError(f"The parameters of the tool {self.name} are not the JSON schema of an object.")

    @property
    def schema(self) -> dict[str, Any]:
        """`parameters`, which may leave out that it is an object."""
        return {"type": "object", **self.parameters}

    @property
    def open(self) -> bool:
        """Whether its arguments may be any object."""
        return self.schema == {"type": "object"}

    def opened(self) -> Tool:
        """The same, taking any object unless it is strict."""
        return self if self.strict else replace(self, parameters={})

    def as_function(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model has asked for."""

    id: str
    """Names the call, so that its result can be matched to it."""
    name: str
    arguments: str
    """A JSON object, as the model wrote it."""

    def as_call(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a client says about calling."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    """`auto`: the model decides; `none`: no call; `required`: at least one; `named`: the tool called `name`."""
    name: str = ""


AUTO = ToolChoice()


def new_call_id() -> str:
    """A fresh id: nine letters and digits, the only shape that every family of chat templates takes."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return "".join(secrets.choice(alphabet) for _ in range(9))


# Parts of a tool call as they become certain: its name, pieces of its arguments, its end.


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool that there is."""

    id: str
    """Names the call, so that its result can be matched to it."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """No more of the call comes."""

    whole: bool
    """Whether its arguments are complete; if not, the answer ended within them."""


CallPart: TypeAlias = CallBegun | CallArguments | CallEnded


def parts_of(call: ToolCall, whole: bool = True) -> list[CallPart]:
    """All parts of a call that comes in one piece."""
    return [CallBegun(call.id, call.name), CallArguments(call.arguments), CallEnded(whole)]


class WholeCalls:
    """Calls from their parts, as they become whole; one that was cut is left out."""

    def __init__(self) -> None:
        self._begun, self._arguments = CallBegun("", ""), ""

    def take(self, parts: Iterable[object]) -> list[ToolCall]:
        """`parts`: of an answer; only those of calls count."""
        found: list[ToolCall] = []
        for part in parts:
            if isinstance(part, CallBegun):
                self._begun, self._arguments = part, ""
            elif isinstance(part, CallArguments):
                self._arguments += part.text
            elif isinstance(part, CallEnded) and part.whole:
                found.append(ToolCall(self._begun.id, self._begun.name, self._arguments))
        return found


NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")


def call_of(text: str) -> tuple[str, str] | None:
    """The name and the arguments, `{}` if there are none, in a JSON object; None = it is no call."""
    found = members(text)
    named = None if found is None else next((found[key] for key in NAME_KEYS if key in found), None)
    if found is None or named is None:
        return None
    name = parse(named)
    arguments = next((found[key] for key in ARGUMENT_KEYS if key in found), "{}")
    if arguments.startswith('"'):  # JSON inside a JSON string, as some models have seen it in training
        arguments = parse(arguments)
    if not isinstance(name, str) or members(arguments) is None:
        return None
    return name, arguments
