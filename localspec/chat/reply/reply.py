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
from functools import partial
from typing import TypeAlias

from localspec.chat.reply.call_form import CallForm, CallReader, NoCall, Reading, arguments_of
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


class AnswerParser(ABC):
    """Takes one answer apart; `push` its text as it comes, `finish` when it has ended."""

    def __init__(self, tools: Sequence[Tool], parallel: bool) -> None:
        """`parallel`: whether more than one call is wanted; if not, the first ends the answer (`done`)."""
        self._tools, self._parallel = tools, parallel
        self._held = ""  # text that is not decided yet
        self._parts: list[Part] = []  # what is certain by now
        self._final = self._cut = False  # no more text comes; the answer ended at a limit
        self._reader: CallReader | None = None  # of the call that has begun
        self.calls = 0
        """Calls so far."""
        self.done = False
        """The one call that was wanted is there: what the model would go on to write is not."""

    def push(self, text: str) -> list[Part]:
        """Takes text, returns what is certain by now."""
        self._parts = []
        self._held += text
        while not self.done and self._next():
            pass
        return self._parts

    def finish(self, cut: bool = False) -> list[Part]:
        """The rest, when no more text comes.
        `cut`: the answer ended at a limit. Then what may be the beginning of a call, before its name, is left out.
        """
        self._final, self._cut = True, cut
        return self.push("")

    def _next(self) -> bool:
        """Says what is certain of the held text; False = more text is needed, or none is left."""
        if self._reader is None:
            return self._read_text()
        try:
            parts, end = self._reader.read(self._held, self._final)
        except NoCall as no_call:
            self._reader = None
            return self._refused(no_call)
        self._call(parts)
        if end is None:
            return False
        self._reader = None
        self._taken(end)
        self._called()
        return True

    @abstractmethod
    def _read_text(self) -> bool:
        """Reads what is no call, and finds where one begins; returns as `_next`."""

    @abstractmethod
    def _refused(self, no_call: NoCall) -> bool:
        """Goes on after the beginning of the held text turned out to be no call; returns as `_next`."""

    @abstractmethod
    def _called(self) -> None:
        """Goes on after a call."""

    def _taken(self, end: int) -> str:
        """The beginning of the held text, which is held no longer."""
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _call(self, parts: Sequence[CallPart]) -> None:
        """Adds parts of calls, up to the end of the one that is wanted."""
        for part in parts:
            if not self.done:
                self._parts.append(part)
                if isinstance(part, CallEnded):
                    self.calls += 1
                    self.done = not self._parallel

    def _append(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        """Adds what is said, to what was said just before if it is of one kind."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, Content | Reasoning) and type(last) is kind:
            self._parts[-1] = kind(last.text + text)
        else:
            self._parts.append(kind(text))


class ReplyParser(AnswerParser):
    """Reads an answer in which thoughts and calls stand between marks; where there are none, all is content."""

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
            lone: an answer that is one JSON object may be a call; not where JSON is asked for.
        """
        super().__init__(tools, parallel)
        self._thought = thought
        self._thinking = thinking and thought is not None
        self._form = form
        self._space = ""  # white space before the call that is being read
        self._said = False  # anything but thoughts, calls and white space
        self._trim = self._thinking  # white space that comes next belongs to a form
        self._may_be_lone = lone and form is not None
        self._lone: CallReader | None = None  # while all there is of the answer may become one call

    def _read_text(self) -> bool:
        """Says what is certainly content or thought; True = a call or a thought begins, or a thought has ended."""
        if self._thinking:
            assert self._thought is not None
            before, closing, after = self._held.partition(self._thought.closing)
            if not closing:
                self._say_certain(Reasoning, (self._thought.closing,))
                return False
            self._say(Reasoning, before.rstrip(_SPACE))
            self._held = after
            self._thought, self._thinking, self._trim = None, False, True
            return True
        form = self._form
        if not self._said and not self.calls and self._may_be_lone:
            try:
                return self._read_lone()
            except NoCall:
                self._lone = None
        anywhere = form.openings if form is not None and not form.first_only else ()
        if not self._said:
            first = form.openings if form is not None and form.first_only else ()
            if self._thought is not None and not self.calls:
                first = (self._thought.opening, *first)
            start = len(self._held) - len(self._held.lstrip(_SPACE))
            for opening in first:
                if self._held.startswith(opening, start):
                    self._begin(start, opening)
                    return True
            if not self._final and any(opening.startswith(self._held[start:]) for opening in first):
                return False
        found = [at for at in map(self._held.find, anywhere) if at >= 0]
        if found:
            self._begin(min(found), "")
            return True
        self._say_certain(Content, anywhere)
        return False

    def _read_lone(self) -> bool:
        """Takes an answer that is one object; False = more text is needed, or none is left."""
        if self._lone is None:  # where objects are the form, it reads them
            bare = self._form is not None and "{" not in self._form.openings
            self._lone = CallReader(partial(_lone_call, bare=bare), self._tools)
        parts, end = self._lone.read(self._held, self._final)
        if end is not None:
            self._held = ""
            self._call(parts)
        return False

    def _begin(self, at: int, opening: str) -> None:
        """A thought, if `opening` is its, or a call begins at an index of the text that is held."""
        if self._thought is not None and opening == self._thought.opening:
            self._taken(at + len(opening))
            self._thinking = self._trim = True
            return
        before = self._taken(at)
        content = before.rstrip(_SPACE)
        self._say(Content, content)
        self._space = before[len(content) :]
        assert self._form is not None
        self._reader = CallReader(self._form.steps, self._tools)

    def _refused(self, no_call: NoCall) -> bool:
        if self._cut and no_call.cut and (self.calls or self._held.startswith(("<", "["))):
            self._held = ""
            return False
        self._say(Content, self._space + self._taken(no_call.at))  # the rest may still hold one
        return True

    def _called(self) -> None:
        self._trim = True

    def _say_certain(self, kind: type[Content] | type[Reasoning], markers: Sequence[str]) -> None:
        """Says all of the held text that cannot be the beginning of a marker, or white space in front of one."""
        text, bare = self._held, self._held.strip(_SPACE)
        if self._cut and self.calls and self._trim and bare and any(marker.startswith(bare) for marker in markers):
            text = ""
        elif not self._final and markers:
            text = text[: len(text) - max(overlap(text, marker) for marker in markers)].rstrip(_SPACE)
        self._held = "" if self._final else self._held[len(text) :]
        self._say(kind, text)

    def _say(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        text = text.lstrip(_SPACE) if self._trim else text
        if text:
            self._trim = False
            self._said = self._said or (kind is Content and bool(text.strip(_SPACE)))
            self._append(kind, text)


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


def _lone_call(reader: CallReader, bare: bool) -> Reading:
    """Steps that read an answer from its beginning. `bare`: an object without a fence counts, too. Raises NoCall: it
    cannot become one."""
    while True:
        fence = _FENCED.match(reader.text)
        opening = _BARE.match(reader.text) if fence is None and bare else fence
        if opening is not None:
            break
        if reader.final or not _BEGUN.fullmatch(reader.text):
            raise NoCall(0)
        yield
    start = opening.end()
    closings: tuple[str, ...] = (_FENCE if fence else "",)
    while start + 1 == len(reader.text) and not reader.final:
        yield
    if reader.text.startswith("{{", start):  # as Qwen2.5's template shows it
        start += 1
        closings = tuple(more + closings[0] for more in ("}", "}}"))
    span = JsonSpan(start)
    while (end := span.end(reader.text)) is None:
        if reader.final or not _may_call(reader, start):
            raise NoCall(0)
        yield
    while True:
        rest = "".join(reader.text[end:].split())
        if not any(rest == one if reader.final else one.startswith(rest) for one in closings):
            raise NoCall(0)
        if reader.final:
            break
        yield
    found, named = members(reader.text[start:end]) or {}, call_of(reader.text[start:end])
    tool = None if named is None else reader.tools.get(named[0])
    if named is None or tool is None or not set(found) <= _KEYS or set(found).isdisjoint(ARGUMENT_KEYS):
        raise NoCall(0)
    if not admits(arguments_of(tool), parse(named[1])):
        raise NoCall(0)
    reader.parts += parts_of(ToolCall(new_call_id(), *named))
    return end


def _may_call(reader: CallReader, at: int) -> bool:
    """Whether an object that has begun may call a tool; an answer in JSON is not held back to its end."""
    if reader.text[at + 1 :].lstrip()[:1] not in ("", '"'):
        return False
    while (member := _MEMBER.match(reader.text, at)) is not None:
        key, value = member.groups()
        if key not in _KEYS or (key in NAME_KEYS and value is not None and value not in reader.tools):
            return False
        at = member.end()
    return True
