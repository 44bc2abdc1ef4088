"""Tool calls whose name stands before their JSON arguments, between marks: DeepSeek and Kimi."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.chat.reply.call_form import CallReader, Found, Mark, argument_rules, closed, marked, names_of
from localspec.chat.reply.call_json import Named, NoCall
from localspec.chat.reply.tool import CallBegun, CallEnded, Tool, ToolCall, new_call_id

_LONGEST_HEAD = 512
"""Characters between the opening mark and the arguments; a name has at most 128. A choice."""


@dataclass(frozen=True)
class NamedForm:
    """Marks around calls, and texts around the name and the arguments of each."""

    begin: str
    """Before the first call."""
    call: str
    """Before each call."""
    head: str
    """Regular expression of what stands between `call` and the arguments; its first group is the name."""
    before: str
    """Before the name, as the model writes it."""
    between: str
    """Between the name and the arguments, as the model writes it."""
    after: tuple[str, ...]
    """After the arguments; white space may stand between."""
    end: str
    """After the last call."""
    marks: tuple[str, ...] = ()
    """Texts within `before` and `between` that may be tokens of their own."""
    first_only = False

    @property
    def openings(self) -> tuple[str, ...]:
        """What a call begins with."""
        return (self.begin, self.call)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be tokens of their own."""
        return (self.begin, self.call, *self.marks, *self.after, self.end)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one call."""
        return _NamedReader(self, names_of(tools))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar: one call of these tools, or `many`."""
        before, between = self._marked(self.before, mark), self._marked(self.between, mark)
        after = " ".join(self._marked(text, mark) for text in self.after)
        calls = 'call ("\\n"? call)*' if many else "call"
        rules = [f"calls: {mark(self.begin)} {calls} {mark(self.end)}"]
        rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
        names, arguments = argument_rules(tools)
        for index, tool in enumerate(tools):
            head = f"{mark(self.call)} {before} {json.dumps(tool.name)} {between}"
            rules.append(f"call_{index}: {head} {names[index]} {after}")
        return "\n".join([*rules, *arguments])

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        after = "".join(self.after)
        shown = [f"{self.call}{self.before}{call.name}{self.between}{call.arguments}{after}" for call in calls]
        return self.begin + "".join(shown) + self.end

    def _marked(self, text: str, mark: Mark) -> str:
        return marked(text, self.markers, mark)


class _NamedReader:
    def __init__(self, form: NamedForm, names: frozenset[str]) -> None:
        self._form, self._names = form, names
        begin, call = re.escape(form.begin), re.escape(form.call)
        self._head = re.compile(rf"(?:{begin}\s*)?{call}{form.head}")
        self._before_object = re.compile(rf"{self._head.pattern}(?=\{{)")
        self._named: Named | None = None

    def read(self, text: str, final: bool) -> Found:
        if self._named is None:
            head = self._before_object.match(text, 0, _LONGEST_HEAD)
            if head is None:
                return self._headless(text, final)
            self._named = Named(head[1], head.end(), self._names)
        parts = self._named.read(text, final) if self._named.end is None else []
        end = self._named.end
        for closing in (*self._form.after, self._form.end):
            if end is not None:
                end = closed(text, end, closing.strip(), final)
        return Found(parts, end)

    def _headless(self, text: str, final: bool) -> Found:
        """What has no arguments yet."""
        if not final and len(text) < _LONGEST_HEAD:
            return Found([], None)
        head = self._head.fullmatch(text) if len(text) < _LONGEST_HEAD else None
        if head is None or head[1] not in self._names:
            at = max(len(opening) for opening in self._form.openings if text.startswith(opening))
            raise NoCall(at, cut=final and head is None)
        return Found([CallBegun(new_call_id(), head[1]), CallEnded(whole=False)], len(text))


def _deepseek_mark(words: str) -> str:
    """DeepSeek's token of these words; its bars are wide ones, and its spaces are drawn."""
    return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"


DEEPSEEK_CALL = _deepseek_mark("tool call begin")
"""What tells DeepSeek's form."""


def deepseek(fenced: bool) -> NamedForm:
    """A name, a separator, and arguments, between the tokens `tool call begin` and `tool call end`.

    Args:
        fenced: as DeepSeek-V3 and R1 write it, with `function` before the name and a fence around the arguments; V3.1
            does without them.
    """
    separator = _deepseek_mark("tool sep")
    call_end = _deepseek_mark("tool call end")
    return NamedForm(
        begin=_deepseek_mark("tool calls begin"),
        call=DEEPSEEK_CALL,
        head=rf"\s*function{separator}([^\s<]+)\s*```json\s*" if fenced else rf"\s*([^\s<]+){separator}\s*",
        before=f"function{separator}" if fenced else "",
        between="\n```json\n" if fenced else separator,
        after=("\n```", call_end) if fenced else (call_end,),
        end=_deepseek_mark("tool calls end"),
        marks=(separator,),
    )


KIMI = NamedForm(
    begin="<|tool_calls_section_begin|>",
    call="<|tool_call_begin|>",
    head=r"\s*(?:functions\.)?([^\s<]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*",
    before="functions.",
    between=":0<|tool_call_argument_begin|>",
    after=("<|tool_call_end|>",),
    end="<|tool_calls_section_end|>",
    marks=("<|tool_call_argument_begin|>",),
)
"""`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, in a section: Kimi-K2."""
