"""Tool calls in Gemma's own notation: keys without quotes, texts between marks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.reply import json_span
from localspec.chat.reply.call_form import CallReader, Found, Mark, names_of
from localspec.chat.reply.call_json import NoCall, begins_name
from localspec.chat.reply.tool import CallPart, Tool, ToolCall, new_call_id, parts_of

_MOST_LEVELS = 64
"""How deep values may be nested. A choice."""


@dataclass(frozen=True)
class GemmaForm:
    """`call:name{key:value,...}` between an opening and a closing mark."""

    opening: str
    closing: str
    quote: str
    """On both sides of a text."""
    first_only = False

    @property
    def openings(self) -> tuple[str, ...]:
        """What a call begins with."""
        return (self.opening,)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be tokens of their own."""
        return (self.opening, self.closing, self.quote)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one call."""
        return _GemmaReader(self, names_of(tools))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar: one call of these tools, or `many`, with any arguments."""
        opening, closing, quote = map(mark, self.markers)
        heads = " | ".join(json.dumps(f"call:{tool.name}{{") for tool in tools)
        rules = [f"calls: {'call+' if many else 'call'}", f'call: {opening} ({heads}) inside "}}" {closing}']
        rules.append(r'inside: (/[^{}]+/ | text | "{" inside "}")*')
        if quote.startswith("<"):
            rules.append(f"text: {quote} /(?s:.*)/ {quote}")
        else:
            rules.append(f"text: {quote} end_of_text\nend_of_text[suffix={quote}]: /(?s:.*)/")
        return "\n".join(rules)


class _GemmaReader:
    _HEAD = re.compile(r"\s*call:([^\s{]+)\s*(?=\{)")
    _BEGUN = re.compile(r"\s*(?:c(?:a(?:l(?:l(?::[^\s{]*\s*)?)?)?)?)?")

    def __init__(self, form: GemmaForm, names: frozenset[str]) -> None:
        self._form, self._names = form, names
        self._from = 0

    def read(self, text: str, final: bool) -> Found:
        opening, closing = self._form.opening, self._form.closing
        head = self._HEAD.match(text, len(opening))
        if head is None:
            begun = self._BEGUN.fullmatch(text, len(opening))
            if final or begun is None:
                name = text[len(opening) :].strip().removeprefix("call:")
                raise NoCall(
                    len(opening), cut=begun is not None and (name in "call:" or begins_name(name, self._names))
                )
            return Found([], None)
        at = text.find(closing, self._from)
        if at < 0 and not final:
            self._from = max(0, len(text) - len(closing))
            return Found([], None)
        end = len(text) if at < 0 else at + len(closing)
        parts = self._parts(head[1], text[head.end() : len(text) if at < 0 else at].rstrip(), cut=at < 0)
        if not parts:
            raise NoCall(end)
        return Found(parts, end)

    def _parts(self, name: str, written: str, cut: bool) -> list[CallPart]:
        """The call; [] = it is none."""
        if name not in self._names:
            return []
        notation = _Notation(written, self._form.quote)
        try:
            arguments, end = notation.object(0, 0)
        except ValueError:
            if not cut:
                return []
            known = json.dumps(notation.outermost, ensure_ascii=False)[:-1]
            return parts_of(ToolCall(new_call_id(), name, known), whole=False)
        whole = ToolCall(new_call_id(), name, json.dumps(arguments, ensure_ascii=False))
        rest = written[end:].strip()
        return parts_of(whole) if not rest or (cut and self._form.closing.startswith(rest)) else []


class _Notation:
    """Reads values of a text; every method raises ValueError where it is none."""

    _KEY = re.compile(r"\s*([^\s:{}\[\],]+)\s*:")
    _PLAIN = re.compile(r"[^{}\[\],]*")

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote
        self.outermost: dict[str, Any] = {}
        """Complete members of the outermost object."""

    def object(self, at: int, level: int) -> tuple[dict[str, Any], int]:
        """An object whose bracket stands at `at`, and the index after it."""
        found = self.outermost if level == 0 else {}
        at = self._next(self._expect("{", at))
        while self._text[at : at + 1] != "}":
            key, at = self._key(at)
            found[key], at = self._value(at, level + 1)
            at = self._next(at)
            if self._text[at : at + 1] != "}":
                at = self._next(self._expect(",", at))
        return found, at + 1

    def _array(self, at: int, level: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self._next(self._expect("[", at))
        while self._text[at : at + 1] != "]":
            value, at = self._value(at, level + 1)
            found.append(value)
            at = self._next(at)
            if self._text[at : at + 1] != "]":
                at = self._next(self._expect(",", at))
        return found, at + 1

    def _key(self, at: int) -> tuple[str, int]:
        if self._text.startswith(self._quote, at):
            key, at = self._quoted(at)
            return key, self._expect(":", at)
        found = self._KEY.match(self._text, at)
        if found is None:
            raise ValueError(at)
        return found[1], found.end()

    def _value(self, at: int, level: int) -> tuple[Any, int]:
        at = self._next(at)
        if level > _MOST_LEVELS:
            raise ValueError(at)
        if self._text.startswith(self._quote, at):
            return self._quoted(at)
        mark = self._text[at : at + 1]
        if mark == "{":
            return self.object(at, level)
        if mark == "[":
            return self._array(at, level)
        found = self._PLAIN.match(self._text, at)
        if found is None or found.end() == len(self._text):
            raise ValueError(at)
        plain = found[0].strip()
        return (None if plain == "None" else _plain(plain)), found.end()

    def _quoted(self, at: int) -> tuple[str, int]:
        start = at + len(self._quote)
        end = self._text.index(self._quote, start)
        return self._text[start:end], end + len(self._quote)

    def _expect(self, mark: str, at: int) -> int:
        if self._text[at : at + 1] != mark:
            raise ValueError(at)
        return at + 1

    def _next(self, at: int) -> int:
        return json_span.skip_space(self._text, at)


def _plain(text: str) -> Any:
    """A number or a word of JSON; anything else is text."""
    try:
        return json_span.parse(text)
    except ValueError:
        return text


GEMMA = GemmaForm("<|tool_call>", "<tool_call|>", '<|"|>')
"""Gemma 4."""
FUNCTION_GEMMA = GemmaForm("<start_function_call>", "<end_function_call>", "<escape>")
"""FunctionGemma."""
