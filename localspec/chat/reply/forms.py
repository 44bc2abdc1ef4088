"""Which form of tool calls a chat template asks for, and the forms of Granite, Command-R, DeepSeek, Kimi and Gemma."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.prompt.sealed import json_text
from localspec.chat.reply.call_form import (
    BareForm,
    CallForm,
    CallReader,
    Found,
    JsonForm,
    ListForm,
    Mark,
    TaggedForm,
    alternatives,
    marked,
    object_rules,
    text_rule,
    tool_rules,
    without_arguments,
)
from localspec.chat.reply.call_json import Arguments, Array, NoCall, begins_name
from localspec.chat.reply.harmony import CONSTRAIN, HARMONY
from localspec.chat.reply.tool import CallPart, Tool, ToolCall, new_call_id, parse, parts_of, skip_space
from localspec.chat.reply.xml_form import PairForm, XmlForm

_NUMBERED = r'"tool_call_id": ?"[0-9]+", ?'
"""What Command-R7B writes before a name, as a regular expression."""


@dataclass(frozen=True)
class ArrayForm(JsonForm):
    """Texts around an array of objects, and the keys in each."""

    opening: str
    """Text or token before the array."""
    lead: str
    """Between it and the array; white space may stand around it."""
    closing: str
    """Text or token after the array; "" = there is none."""
    name_key: str
    argument_key: str

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.opening,)

    @property
    def closings(self) -> tuple[str, ...]:
        return (self.closing,) if self.closing else ()

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, *self.closings)

    def begin(self, text: str, names: frozenset[str], final: bool) -> Array | None:
        at = skip_space(text, len(self.opening))
        if text.startswith(self.lead, at):
            at = skip_space(text, at + len(self.lead))
        elif not final and self.lead.startswith(text[at:]):
            return None
        if at == len(text) and not final:
            return None
        if text[at : at + 1] != "[":
            raise NoCall(at, cut=self.lead.startswith(text[at:]))
        return Array(at, names)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        calls = "object (/,\\s*/ object)*" if many else "object"
        lead = f'"\\n" {json.dumps(self.lead)} "\\n"' if self.lead else '"\\n"?'
        closing = mark(self.closing) if self.closing else '""'
        head = f"calls: {mark(self.opening)} {lead} /\\[\\s*/ {calls} /\\s*\\]/ {closing}"
        lead = _NUMBERED if self.name_key == "tool_name" else ""
        return f"{head}\n{object_rules(tools, self.argument_key, self.name_key, lead)}"

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        shown = [f'{{"{self.name_key}": {json_text(c.name)}, "{self.argument_key}": {c.arguments}}}' for c in calls]
        return f"{self.opening}{self.lead}[{', '.join(shown)}]{self.closing}"


GRANITE = ArrayForm("<|tool_call|>", "", "", "name", "arguments")
"""`<|tool_call|>[{"name": ..., "arguments": {...}}]`: Granite 3."""
COMMAND_R7B = ArrayForm("<|START_ACTION|>", "", "<|END_ACTION|>", "tool_name", "parameters")
"""`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`: Command-R7B and A."""
COMMAND_R = ArrayForm("Action:", "```json", "```", "tool_name", "parameters")
"""`Action:`, then a fence with `[{"tool_name": ..., "parameters": {...}}]`: Command-R and R+."""


_LONGEST_HEAD = 512
"""Characters between the opening mark and the arguments; a name has at most 128. A choice."""


@dataclass(frozen=True)
class NamedForm(JsonForm):
    """Marks around calls, and texts around the name and the arguments of each."""

    before_all: str
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
    after_all: str
    """After the last call."""
    marks: tuple[str, ...] = ()
    """Texts within `before` and `between` that may be tokens of their own."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.before_all, self.call)

    @property
    def closings(self) -> tuple[str, ...]:
        return tuple(text.strip() for text in (*self.after, self.after_all))

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.before_all, self.call, *self.marks, *self.after, self.after_all)

    def begin(self, text: str, names: frozenset[str], final: bool) -> Found | Arguments | None:
        pattern = rf"(?:{re.escape(self.before_all)}\s*)?{re.escape(self.call)}{self.head}"
        if (head := re.compile(rf"{pattern}(?=\{{)").match(text, 0, _LONGEST_HEAD)) is not None:
            return Arguments(head[1], head.end(), names)
        if not final and len(text) < _LONGEST_HEAD:
            return None
        head = re.fullmatch(pattern, text) if len(text) < _LONGEST_HEAD else None
        if head is None or head[1] not in names:
            at = max(len(opening) for opening in self.openings if text.startswith(opening))
            raise NoCall(at, cut=final and head is None)
        return without_arguments(head[1], text)

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        before, between = (marked(text, self.markers, mark) for text in (self.before, self.between))
        after = " ".join(marked(text, self.markers, mark) for text in self.after)
        calls = 'call ("\\n"? call)*' if many else "call"
        rules = [
            f"calls: {mark(self.before_all)} {calls} {mark(self.after_all)}",
            f"call: {alternatives('call', tools)}",
        ]

        def body(tool: Tool, arguments: str) -> str:
            return f"{mark(self.call)} {before} {json.dumps(tool.name)} {between} {arguments} {after}"

        return "\n".join([*rules, *tool_rules("call", tools, body)])

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        after = "".join(self.after)
        shown = [f"{self.call}{self.before}{call.name}{self.between}{call.arguments}{after}" for call in calls]
        return self.before_all + "".join(shown) + self.after_all


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
        before_all=_deepseek_mark("tool calls begin"),
        call=DEEPSEEK_CALL,
        head=rf"\s*function{separator}([^\s<]+)\s*```json\s*" if fenced else rf"\s*([^\s<]+){separator}\s*",
        before=f"function{separator}" if fenced else "",
        between="\n```json\n" if fenced else separator,
        after=("\n```", call_end) if fenced else (call_end,),
        after_all=_deepseek_mark("tool calls end"),
        marks=(separator,),
    )


KIMI = NamedForm(
    before_all="<|tool_calls_section_begin|>",
    call="<|tool_call_begin|>",
    head=r"\s*(?:functions\.)?([^\s<]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*",
    before="functions.",
    between=":0<|tool_call_argument_begin|>",
    after=("<|tool_call_end|>",),
    after_all="<|tool_calls_section_end|>",
    marks=("<|tool_call_argument_begin|>",),
)
"""`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, in a section: Kimi-K2."""


_MOST_LEVELS = 64
"""How deep values may be nested. A choice."""


@dataclass(frozen=True)
class GemmaForm(CallForm):
    """`call:name{key:value,...}` between an opening and a closing mark."""

    opening: str
    closing: str
    quote: str
    """On both sides of a text."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.opening,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing, self.quote)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return _GemmaReader(self, frozenset(tool.name for tool in tools))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """As every form's, but with any arguments."""
        opening, closing, quote = map(mark, self.markers)
        heads = " | ".join(json.dumps(f"call:{tool.name}{{") for tool in tools)
        rules = [f"calls: {'call+' if many else 'call'}", f'call: {opening} ({heads}) inside "}}" {closing}']
        rules.append(r'inside: (/[^{}]+/ | text | "{" inside "}")*')
        rules.append(text_rule("text", "end_of_text", quote, quote))
        return "\n".join(rules)


class _GemmaReader(CallReader):
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
        self._at = 0
        self.outermost: dict[str, Any] = {}
        """Complete members of the outermost object."""

    def object(self, at: int, level: int) -> tuple[dict[str, Any], int]:
        """An object whose bracket stands at `at`, and the index after it."""
        found = self.outermost if level == 0 else {}
        for start in self._items(at, "{}"):
            key, behind = self._key(start)
            found[key], self._at = self._value(behind, level + 1)
        return found, self._at

    def _array(self, at: int, level: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        for start in self._items(at, "[]"):
            value, self._at = self._value(start, level + 1)
            found.append(value)
        return found, self._at

    def _items(self, at: int, brackets: str) -> Iterator[int]:
        """Where each item between brackets begins; before the next, and after the last, `_at` is where one ended."""
        at = self._next(self._expect(brackets[0], at))
        while self._text[at : at + 1] != brackets[1]:
            yield at
            at = self._next(self._at)
            if self._text[at : at + 1] != brackets[1]:
                at = self._next(self._expect(",", at))
        self._at = at + 1

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
        return skip_space(self._text, at)


def _plain(text: str) -> Any:
    """A number or a word of JSON; anything else is text."""
    try:
        return parse(text)
    except ValueError:
        return text


GEMMA = GemmaForm("<|tool_call>", "<tool_call|>", '<|"|>')
"""Gemma 4."""
FUNCTION_GEMMA = GemmaForm("<start_function_call>", "<end_function_call>", "<escape>")
"""FunctionGemma."""


def form_of(source: str) -> CallForm | None:
    """The form that a template with tools asks for; None = one that is not known here."""
    if all(mark in source for mark in HARMONY.markers if mark != CONSTRAIN):
        return HARMONY
    if "[TOOL_CALLS]" in source:
        return ListForm(named="[ARGS]" in source)
    if "<function=" in source and "<parameter=" in source:
        return XmlForm()
    if "<tool_call>" in source and "<arg_key>" in source and "<arg_value>" in source:
        return PairForm()
    for mark, form in _BY_MARK.items():
        if mark in source:
            return form
    if DEEPSEEK_CALL in source:
        return deepseek(fenced="```json" in source)
    if "<tool_call>" in source:
        return TaggedForm()
    if "Action:" in source and "```json" in source and '"tool_name"' in source:
        return COMMAND_R
    if "<|python_tag|>" in source or ("<|start_header_id|>" in source and '"parameters"' in source):
        return BareForm()
    return None


_BY_MARK: dict[str, CallForm] = {
    GEMMA.opening: GEMMA,
    FUNCTION_GEMMA.opening: FUNCTION_GEMMA,
    KIMI.call: KIMI,
    COMMAND_R7B.opening: COMMAND_R7B,
    GRANITE.opening: GRANITE,
}
"""Forms that one mark tells."""
