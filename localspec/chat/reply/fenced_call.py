"""A call as models write it that were shown tools but never a form: one JSON object in a code fence, and no word more.

Qwen2.5-Coder answers so. An answer with anything around the fence, or whose object does not fit a tool, is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.chat.reply import json_span
from localspec.chat.reply.call_json import ARGUMENT_KEYS, NAME_KEYS, NoCall
from localspec.chat.reply.call_part import call_of
from localspec.chat.reply.tool import Tool, ToolCall, new_call_id
from localspec.grammar.instance import admits

_FENCE = "```"
_OPENING = re.compile(r"\s*```(?:json)?\s*(?=\{)")
_BEGUN = re.compile(r"\s*(?:`{1,2}|```(?:j(?:s(?:on?)?)?)?\s*)?")
"""What may be there before the object."""
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')
_NAMED = re.compile(r'\{\s*"(?:tool_)?name"\s*:\s*"([^"\\]*)"')
_OTHER_KEYS = frozenset({"type", "id"})


class FencedCall:
    """Reads an answer from its beginning."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """`tools`: what may be called."""
        self._tools = {tool.name: tool for tool in tools}
        self._start = 0
        self._span: json_span.JsonSpan | None = None

    def read(self, text: str, final: bool) -> ToolCall | None:
        """The call; None = more text is needed.

        Args:
            text: the answer so far.
            final: no more text comes; then it is one, or none.

        Raises:
            NoCall: it is none, whatever comes.
        """
        if self._span is None:
            opening = _OPENING.match(text)
            if opening is None:
                if final or not _BEGUN.fullmatch(text):
                    raise NoCall(0)
                return None
            self._start = opening.end()
            self._span = json_span.JsonSpan(self._start)
        end = self._span.end(text)
        if end is None:
            if final or not self._may_call(text):
                raise NoCall(0)
            return None
        rest = text[end:].strip()
        if not _FENCE.startswith(rest) or (final and rest != _FENCE):
            raise NoCall(0)
        return self._call(text[self._start : end]) if final else None

    def _may_call(self, text: str) -> bool:
        """Whether an object that has begun may call a tool; an answer in JSON is not held back to its end."""
        key, named = _FIRST_KEY.match(text, self._start), _NAMED.match(text, self._start)
        if named is not None:
            return named[1] in self._tools
        return key is None or key[1] in (*NAME_KEYS, *ARGUMENT_KEYS, *_OTHER_KEYS)

    def _call(self, text: str) -> ToolCall:
        members, called = json_span.members(text) or {}, call_of(text, NAME_KEYS, ARGUMENT_KEYS)
        has_arguments = any(key in members for key in ARGUMENT_KEYS)
        known = set(members) <= {*NAME_KEYS, *ARGUMENT_KEYS, *_OTHER_KEYS}
        tool = None if called is None else self._tools.get(called[0])
        if called is None or tool is None or not has_arguments or not known:
            raise NoCall(0)
        if not admits(tool.schema, json_span.parse(called[1])):
            raise NoCall(0)
        return ToolCall(new_call_id(), *called)
