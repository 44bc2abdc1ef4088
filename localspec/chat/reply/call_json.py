"""JSON of tool calls, read while it is written: arguments alone, or an object with a name and arguments."""

from __future__ import annotations

import re

from localspec.chat.reply.tool import (
    CallArguments,
    CallBegun,
    CallEnded,
    CallPart,
    JsonSpan,
    ToolCall,
    call_of,
    members,
    new_call_id,
    parts_of,
    skip_space,
)

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


class NoCall(Exception):
    """The text is no tool call."""

    def __init__(self, at: int, cut: bool = False) -> None:
        """
        Args:
            at: where it stops to look like one; what comes before need not be looked at again.
            cut: it might have become one, had the text gone on.
        """
        super().__init__(at)
        self.at, self.cut = at, cut


class Arguments:
    """The arguments of one call, from their opening bracket on. If there is no tool of its name, it is no call."""

    def __init__(self, name: str, start: int, names: frozenset[str]) -> None:
        """`start`: where the opening bracket stands."""
        self._span = JsonSpan(start)
        self._told = start
        self._name, self._names = name, names
        self._begun = False
        self.end: int | None = None
        """Index after them; None = not there yet."""

    def read(self, text: str, final: bool) -> list[CallPart]:
        """The parts of the call that are new.

        Raises:
            NoCall: it is none.
        """
        parts: list[CallPart] = []
        if self.end is not None:
            return parts
        end = self._span.end(text)
        upto = len(text) if end is None else end
        ends = final or end is not None
        if self._name not in self._names:
            if ends:
                raise NoCall(upto)
            return parts
        if not self._begun:
            self._begun = True
            parts.append(CallBegun(new_call_id(), self._name))
        if upto > self._told:
            parts.append(CallArguments(text[self._told : upto]))
            self._told = upto
        if ends:
            parts.append(CallEnded(whole=end is not None))
            self.end = upto
        return parts


class Object:
    """`{"name": ..., "arguments": {...}}`. Where the name comes first, arguments come as they are written."""

    def __init__(self, start: int, names: frozenset[str], sure: bool = True) -> None:
        """
        Args:
            start: where its opening bracket stands.
            names: of the tools.
            sure: a name makes a call; if not, the text may be an answer in JSON until the arguments begin.
        """
        self._start, self._names, self._sure = start, names, sure
        self._span = JsonSpan(start)
        self._arguments: Arguments | None = None
        self._headless = False
        self.end: int | None = None
        """Index after it; None = not there yet."""

    def read(self, text: str, final: bool) -> list[CallPart]:
        """The parts of the call that are new."""
        if self._arguments is None and not self._headless:
            self._find_arguments(text)
        end = self._span.end(text)
        if self._arguments is None:
            return self._in_one_piece(text, end, final)
        parts = self._arguments.read(text, final)
        after = self._arguments.end
        if after is None:
            return parts
        if end is not None:
            rest = members('{"": 0' + text[after:end])
            self.end = after if rest is None else end
        elif final:
            self.end = len(text) if _MORE.fullmatch(text, after) else after
        return parts

    def _find_arguments(self, text: str) -> None:
        head = _HEAD.match(text, self._start, self._start + _LONGEST_HEAD)
        if head is not None and head[1] in self._names:
            self._arguments = Arguments(head[1], head.end(), self._names)
        self._headless = head is not None or len(text) >= self._start + _LONGEST_HEAD

    def _in_one_piece(self, text: str, end: int | None, final: bool) -> list[CallPart]:
        if end is None:
            return self._named_only(text) if final else []
        found = call_of(text[self._start : end])
        if found is None or found[0] not in self._names:
            raise NoCall(end)
        self.end = end
        return parts_of(ToolCall(new_call_id(), *found))

    def _named_only(self, text: str) -> list[CallPart]:
        """A call that was cut before its arguments."""
        named = _NAMED.match(text, self._start)
        known = named is not None and named[1] in self._names and bool(_BEGUN.fullmatch(text, named.end()))
        if named is None or not known or not self._sure:
            raise NoCall(len(text), cut=known or self._unnamed(text))
        self.end = len(text)
        return [CallBegun(new_call_id(), named[1]), CallEnded(whole=False)]

    def _unnamed(self, text: str) -> bool:
        """Whether a text that was cut may be the beginning of an object before the end of a tool's name."""
        found = _UNNAMED.fullmatch(text, self._start)
        return found is not None and begins_name(found["name"] or "", self._names)


def begins_name(text: str, names: frozenset[str]) -> bool:
    """Whether a text is the beginning of a tool's name."""
    return any(name.startswith(text) for name in names)


class Array:
    """`[{"name": ..., "arguments": {...}}, ...]`: it ends before the first element that is no call."""

    def __init__(self, start: int, names: frozenset[str]) -> None:
        """`start`: where its opening bracket stands."""
        self._at, self._names = start + 1, names
        self._object: Object | None = None
        self._calls = 0
        self.end: int | None = None
        """Index after it; None = not there yet."""

    def read(self, text: str, final: bool) -> list[CallPart]:
        """The parts of the calls that are new.

        Raises:
            NoCall: the first element is none.
        """
        parts: list[CallPart] = []
        while self.end is None:
            if self._object is None and not self._begin(text, final):
                break
            assert self._object is not None
            try:
                parts += self._object.read(text, final)
            except NoCall as no_call:
                if not self._calls:
                    raise
                self.end = len(text) if no_call.cut else self._at
                break
            if self._object.end is None:
                break
            self._at, self._object = self._object.end, None
            self._calls += 1
        return parts

    def _begin(self, text: str, final: bool) -> bool:
        """Begins the next element, or finds the end; False = neither is there yet, or the end is."""
        at = skip_space(text, self._at)
        mark = text[at : at + 1]
        if mark == "]" and self._calls:
            self.end = at + 1
            return False
        if mark == "," and self._calls:
            at = skip_space(text, at + 1)
            mark = text[at : at + 1]
        if mark == "{" and (text[self._at : at].strip() == ",") is bool(self._calls):
            self._object = Object(at, self._names)
            return True
        if mark or final:
            if not self._calls:
                raise NoCall(at + len(mark), cut=not mark)
            self.end = self._at if mark else len(text)
        return False
