"""Tools a model may call, what a client says about calling them, and a call, whole or in parts."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from localspec.chat.reply import json_span
from localspec.errors import UsageError

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
        if not is_name(self.name):
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
        """As chat templates expect it."""
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


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a client says about calling."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    """`auto`: the model decides; `none`: no call; `required`: at least one; `named`: the tool called `name`."""
    name: str = ""


AUTO = ToolChoice()


def is_name(text: str) -> bool:
    """Whether a tool may be called this."""
    return _NAME.fullmatch(text) is not None


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
    """What comes next of the arguments of the call that has begun."""

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


NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")


def call_of(text: str) -> tuple[str, str] | None:
    """The name and the arguments, `{}` if there are none, in a JSON object; None = it is no call."""
    found = json_span.members(text)
    named = None if found is None else next((found[key] for key in NAME_KEYS if key in found), None)
    if found is None or named is None:
        return None
    name = json_span.parse(named)
    arguments = next((found[key] for key in ARGUMENT_KEYS if key in found), "{}")
    if arguments.startswith('"'):  # JSON inside a JSON string, as some models have seen it in training
        arguments = json_span.parse(arguments)
    if not isinstance(name, str) or json_span.members(arguments) is None:
        return None
    return name, arguments
