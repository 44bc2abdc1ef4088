"""A model's raw answer taken apart while it streams: what it says, what it thinks, and which tools it calls.

Nothing is lost and nothing depends on how the text is cut: what does not call a tool that there is, is content, in its
place. A call is one as soon as its name and the beginning of its arguments are there; then its arguments come as they
are written, even if they turn out to be no JSON. Only white space that touches a recognised call or thought is taken
for a part of the form.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from localspec.chat.reply.call_form import CallForm, CallReader, arguments_of
from localspec.chat.reply.call_json import NoCall
from localspec.chat.reply.tool import (
    ARGUMENT_KEYS,
    NAME_KEYS,
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
    parse,
    parts_of,
)
from localspec.engine.slot import overlap
from localspec.grammar.grammar import admits

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Content:
    """What is said to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


Part: TypeAlias = Content | Reasoning | CallArguments | CallBegun | CallEnded


@dataclass(frozen=True, slots=True)
class Thought:
    """Texts around what a model thinks."""

    opening: str
    closing: str


THOUGHTS = (
    Thought("<think>", "</think>"),
    Thought("[THINK]", "[/THINK]"),
    Thought("<seed:think>", "</seed:think>"),
    Thought("<thinking>", "</thinking>"),
    Thought("<|START_THINKING|>", "<|END_THINKING|>"),
    Thought("<|channel>thought", "<channel|>"),
)
"""Marks of thoughts that models use."""


class Parser(ABC):
    """Takes one answer apart; `push` its text as it comes, `finish` when it has ended."""

    def __init__(self, parallel: bool) -> None:
        """`parallel`: whether more than one call is wanted; if not, the first ends the answer (`done`)."""
        self._parallel = parallel
        self._held = ""  # text that is not decided yet
        self._reader: CallReader | None = None
        self.calls = 0
        """Calls so far."""
        self.done = False
        """The one call that was wanted is there: what the model would go on to write is not."""
        self._cut = False  # the answer ended at a limit

    def push(self, text: str) -> list[Part]:
        """Takes text, returns what is certain by now."""
        return self._read(text, final=False)

    def finish(self, cut: bool = False) -> list[Part]:
        """The rest, when no more text comes.

        Args:
            cut: the answer ended at a limit. Then what may be the beginning of a call, before its name, is left out.
        """
        self._cut = cut
        return self._read("", final=True)

    @abstractmethod
    def _next(self, parts: list[Part], final: bool) -> bool:
        """Says what is certain of the held text; False = more text is needed, or none is left."""

    def _read(self, text: str, final: bool) -> list[Part]:
        parts: list[Part] = []
        self._held += text
        while not self.done and self._next(parts, final):
            pass
        return parts

    def _take(self, parts: list[Part], part: CallPart) -> None:
        if self.done:
            return
        parts.append(part)
        if isinstance(part, CallEnded):
            self.calls += 1
            self.done = not self._parallel


def append(parts: list[Part], part: Content | Reasoning) -> None:
    """Adds what is said to what was said just before."""
    last = parts[-1] if parts else None
    if isinstance(last, Content | Reasoning) and type(last) is type(part):
        parts[-1] = type(part)(last.text + part.text)
    else:
        parts.append(part)


class CallParser(Parser):
    """One that finds calls: its `_reader` reads the one that has begun."""

    def _next(self, parts: list[Part], final: bool) -> bool:
        if self._reader is None:
            return self._read_text(parts, final)
        try:
            found = self._reader.read(self._held, final)
        except NoCall as no_call:
            self._reader = None
            return self._refused(parts, no_call)
        for part in found.parts:
            self._take(parts, part)
        if found.end is None:
            return False
        self._reader = None
        self._held = self._held[found.end :]
        self._called()
        return True

    @abstractmethod
    def _read_text(self, parts: list[Part], final: bool) -> bool:
        """Reads what is no call, and finds where one begins; returns as `_next`."""

    @abstractmethod
    def _refused(self, parts: list[Part], no_call: NoCall) -> bool:
        """Goes on after the beginning of the held text turned out to be no call; returns as `_next`."""

    @abstractmethod
    def _called(self) -> None:
        """Goes on after a call."""


class Verbatim(Parser):
    """Takes nothing apart: all is content, marks included."""

    def __init__(self) -> None:
        super().__init__(parallel=True)

    def _next(self, parts: list[Part], final: bool) -> bool:
        if self._held:
            parts.append(Content(self._held))
            self._held = ""
        return False


class ReplyParser(CallParser):
    """Reads an answer in which thoughts and calls stand between marks."""

    def __init__(
        self,
        *,
        thought: Thought | None = None,
        thinking: bool = False,
        form: CallForm | None = None,
        tools: Sequence[Tool] = (),
        parallel: bool = True,
        lone: bool = True,
    ) -> None:
        """
        Args:
            thought: how the model marks what it thinks; None = it does not think.
            thinking: the prompt ends inside a thought.
            form: how the model writes calls; None = there is nothing to call.
            tools: what it may call.
            parallel: whether more than one call is wanted; if not, the first ends the answer (`done`).
            lone: an answer that is one JSON object may be a call; not where JSON is asked for.
        """
        super().__init__(parallel)
        self._thought = thought
        self._thinking = thinking and thought is not None
        self._form = form
        self._tools = tools
        self._space = ""  # white space before the call that is being read
        self._said = False  # anything but thoughts, calls and white space
        self._trim = self._thinking  # white space that comes next belongs to a form
        self._may_be_lone = lone and form is not None
        self._bare = form is not None and "{" not in form.openings  # where objects are the form, it reads them
        self._lone: LoneCall | None = None  # while all there is of the answer may become one

    def _read_text(self, parts: list[Part], final: bool) -> bool:
        return self._read_thought(parts, final) if self._thinking else self._read_content(parts, final)

    def _read_thought(self, parts: list[Part], final: bool) -> bool:
        assert self._thought is not None
        closing = self._thought.closing
        at = self._held.find(closing)
        if at >= 0:
            self._say(parts, Reasoning(self._held[:at].rstrip(_SPACE)))
            self._held = self._held[at + len(closing) :]
            self._thought, self._thinking, self._trim = None, False, True
            return True
        self._say_certain(parts, Reasoning, (closing,), final)
        return False

    def _read_content(self, parts: list[Part], final: bool) -> bool:
        """Says what is certainly content; True = a call or a thought begins."""
        anywhere = self._form.openings if self._form is not None and not self._form.first_only else ()
        if not self._said and not self.calls and self._may_be_lone:
            try:
                return self._read_lone(parts, final)
            except NoCall:
                self._lone = None
        if not self._said:
            start = len(self._held) - len(self._held.lstrip(_SPACE))
            first = self._first_openings()
            for opening in first:
                if self._held.startswith(opening, start):
                    self._begin(parts, start, opening)
                    return True
            if not final and any(opening.startswith(self._held[start:]) for opening in first):
                return False
        found = [at for at in map(self._held.find, anywhere) if at >= 0]
        if found:
            self._begin(parts, min(found), "")
            return True
        self._say_certain(parts, Content, anywhere, final)
        return False

    def _read_lone(self, parts: list[Part], final: bool) -> bool:
        """Takes an answer that is one object; False = more text is needed, or none is left."""
        self._lone = self._lone or LoneCall(self._tools, self._bare)
        call = self._lone.read(self._held, final)
        if call is not None:
            self._held = ""
            for part in parts_of(call):
                self._take(parts, part)
        return False

    def _first_openings(self) -> tuple[str, ...]:
        """What counts only as long as nothing has been said."""
        calls = self._form.openings if self._form is not None and self._form.first_only else ()
        return calls if self._thought is None or self.calls else (self._thought.opening, *calls)

    def _begin(self, parts: list[Part], at: int, opening: str) -> None:
        """A thought, if `opening` is its, or a call begins at an index of the text that is held."""
        before = self._held[:at]
        if self._thought is not None and opening == self._thought.opening:
            self._held = self._held[at + len(opening) :]
            self._thinking = self._trim = True
            return
        content = before.rstrip(_SPACE)
        self._say(parts, Content(content))
        self._space = before[len(content) :]
        self._held = self._held[at:]
        assert self._form is not None
        self._reader = self._form.reader(self._tools)

    def _refused(self, parts: list[Part], no_call: NoCall) -> bool:
        if self._cut and no_call.cut and (self.calls or self._held.startswith(("<", "["))):
            self._held = ""
            return False
        self._say(parts, Content(self._space + self._held[: no_call.at]))
        self._held = self._held[no_call.at :]  # which may still hold one
        return True

    def _called(self) -> None:
        self._trim = True

    def _say_certain(
        self, parts: list[Part], kind: type[Content] | type[Reasoning], markers: Sequence[str], final: bool
    ) -> None:
        """Says all of the held text that cannot be the beginning of a marker, or white space in front of one."""
        text = self._held
        if final and self._cut and self.calls and self._trim and _begins(text.strip(_SPACE), markers):
            text = ""
        elif not final and markers:
            text = text[: len(text) - max(overlap(text, marker) for marker in markers)].rstrip(_SPACE)
        self._held = "" if final else self._held[len(text) :]
        self._say(parts, kind(text))

    def _say(self, parts: list[Part], part: Content | Reasoning) -> None:
        text = part.text.lstrip(_SPACE) if self._trim else part.text
        if not text:
            return
        self._trim = False
        self._said = self._said or (isinstance(part, Content) and bool(text.strip(_SPACE)))
        append(parts, type(part)(text))


def _begins(text: str, markers: Sequence[str]) -> bool:
    """Whether a text is the beginning of a marker."""
    return bool(text) and any(marker.startswith(text) for marker in markers)


# A call as models write it that were shown tools but never a form: one JSON object, in a code fence or not, and no word
# more.
#
# Qwen2.5-Coder answers so. An answer with anything around it, or whose object does not fit a tool, is text.

_FENCE = "```"
_FENCED = re.compile(r"\s*```(?:json)?\s*(?=\{)")
_BARE = re.compile(r"\s*(?=\{)")
_BEGUN = re.compile(r"\s*(?:`{1,2}|```(?:j(?:s(?:on?)?)?)?\s*)?")
"""What may be there before the object."""
_MEMBER = re.compile(r'[{,]\s*"([^"\\]*)"(?:\s*:\s*(?:"([^"\\]*)"|[\w.+-]+(?=\s*[,}])))?\s*')
"""A key, and its value where that is a text or a number."""
_KEYS = frozenset({*NAME_KEYS, *ARGUMENT_KEYS, "type", "id"})


class LoneCall:
    """Reads an answer from its beginning."""

    def __init__(self, tools: Sequence[Tool], bare: bool) -> None:
        """
        Args:
            tools: what may be called.
            bare: an object without a fence counts, too.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._bare = bare
        self._start = 0
        self._closings: tuple[str, ...] = ("",)
        self._span: JsonSpan | None = None

    def read(self, text: str, final: bool) -> ToolCall | None:
        """The call; None = more text is needed.

        Args:
            text: the answer so far.
            final: no more text comes; then it is one, or none.

        Raises:
            NoCall: it is none, whatever comes.
        """
        if self._span is None:
            fence = _FENCED.match(text)
            opening = _BARE.match(text) if fence is None and self._bare else fence
            if opening is None:
                if final or not _BEGUN.fullmatch(text):
                    raise NoCall(0)
                return None
            self._start, self._closings = opening.end(), (_FENCE if fence else "",)
            if self._start + 1 == len(text) and not final:
                return None
            if text.startswith("{{", self._start):  # as Qwen2.5's template shows it
                self._start += 1
                self._closings = tuple(more + self._closings[0] for more in ("}", "}}"))
            self._span = JsonSpan(self._start)
        end = self._span.end(text)
        if end is None:
            if final or not self._may_call(text):
                raise NoCall(0)
            return None
        rest = "".join(text[end:].split())
        if not any(rest == one if final else one.startswith(rest) for one in self._closings):
            raise NoCall(0)
        return self._call(text[self._start : end]) if final else None

    def _may_call(self, text: str) -> bool:
        """Whether an object that has begun may call a tool; an answer in JSON is not held back to its end."""
        at = self._start
        if text[at + 1 :].lstrip()[:1] not in ("", '"'):
            return False
        while (member := _MEMBER.match(text, at)) is not None:
            key, value = member.groups()
            if key not in _KEYS or (key in NAME_KEYS and value is not None and value not in self._tools):
                return False
            at = member.end()
        return True

    def _call(self, text: str) -> ToolCall:
        found, called = members(text) or {}, call_of(text)
        has_arguments = any(key in found for key in ARGUMENT_KEYS)
        tool = None if called is None else self._tools.get(called[0])
        if called is None or tool is None or not has_arguments or not set(found) <= _KEYS:
            raise NoCall(0)
        if not admits(arguments_of(tool), parse(called[1])):
            raise NoCall(0)
        return ToolCall(new_call_id(), *called)
