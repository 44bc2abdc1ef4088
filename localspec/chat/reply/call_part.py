"""Parts of a tool call as they become certain: its name, pieces of its arguments, its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from localspec.chat.reply import json_span
from localspec.chat.reply.tool import ToolCall


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


def call_of(text: str, name_keys: Sequence[str], argument_keys: Sequence[str]) -> tuple[str, str] | None:
    """The name and the arguments in a JSON object; None = it is no call.

    Args:
        text: the object.
        name_keys: keys under which a name may stand.
        argument_keys: keys under which arguments may stand; without them they are `{}`.
    """
    found = json_span.members(text)
    named = None if found is None else next((found[key] for key in name_keys if key in found), None)
    if found is None or named is None:
        return None
    name = json_span.parse(named)
    arguments = next((found[key] for key in argument_keys if key in found), "{}")
    if arguments.startswith('"'):  # JSON inside a JSON string, as some models have seen it in training
        arguments = json_span.parse(arguments)
    if not isinstance(name, str) or json_span.members(arguments) is None:
        return None
    return name, arguments
