"""Reads a call whose arguments are plain texts, each after its key: what the XML forms of several families share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from localspec.chat.reply import json_span
from localspec.chat.reply.call_form import Found
from localspec.chat.reply.call_json import NoCall, begins_name
from localspec.chat.reply.call_part import parts_of
from localspec.chat.reply.tool import ToolCall, new_call_id


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
