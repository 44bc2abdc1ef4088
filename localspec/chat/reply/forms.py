"""The forms in which models write tool calls, a family each, and which of them a chat template asks for."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from localspec.chat.prompt.sealed import json_text
from localspec.chat.reply.call_form import (
    CallForm,
    CallReader,
    Mark,
    NoCall,
    Reading,
    alternatives,
    marked,
    object_rules,
    text_rule,
    tool_rules,
)
from localspec.chat.reply.harmony import CONSTRAIN, HARMONY
from localspec.chat.reply.tool import Tool, ToolCall, new_call_id, parse, parts_of, skip_space

_NUMBERED = r'"tool_call_id": ?"[0-9]+", ?'
"""What Command-R7B writes before a name, as a regular expression."""


@dataclass(frozen=True)
class JsonForm(CallForm):
    """An object with the name and the arguments, or an array of them, between texts."""

    opening: str
    closing: str = ""
    """"" = there is none."""
    lead: str = ""
    """Between the opening and the JSON; white space may stand around it."""
    name_key: str = "name"
    argument_key: str = "arguments"
    array: bool = True
    first_only: bool = False
    """An object may stand alone, as all of the answer: it is told apart by its name, which must be that of a tool."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.opening, "{") if self.first_only else (self.opening,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing) if self.closing else (self.opening,)

    def steps(self, reader: CallReader) -> Reading:
        while True:
            text = reader.text
            at = skip_space(text, len(self.opening) if text.startswith(self.opening) else 0)
            if text.startswith(self.lead, at):
                at = skip_space(text, at + len(self.lead))
            elif not reader.final and self.lead.startswith(text[at:]):
                yield
                continue
            if at < len(text) or reader.final:
                break
            yield
        if text[at : at + 1] != ("[" if self.array else "{"):
            raise NoCall(at, cut=self.lead.startswith(text[at:]))
        end = yield from reader.array(at) if self.array else reader.object(at, sure=not self.first_only)
        return (yield from reader.closed(end, *self.markers[1:]))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening, closing = mark(self.opening), mark(self.closing) if self.closing else '""'
        if self.array:
            calls = "object (/,\\s*/ object)*" if many else "object"
            lead = f'"\\n" {json.dumps(self.lead)} "\\n"' if self.lead else '"\\n"?'
            head = f"calls: {opening} {lead} /\\[\\s*/ {calls} /\\s*\\]/ {closing}"
        elif self.first_only:
            head = "calls: object"
        else:
            calls = 'call ("\\n"? call)*' if many else "call"
            head = f'calls: {calls}\ncall: {opening} "\\n"? object "\\n"? {closing}'
        lead = _NUMBERED if self.name_key == "tool_name" else ""
        return f"{head}\n{object_rules(tools, self.argument_key, self.name_key, lead)}"

    def written(self, calls: Sequence[ToolCall]) -> str:
        shown = [f'{{"{self.name_key}": {json_text(c.name)}, "{self.argument_key}": {c.arguments}}}' for c in calls]
        if self.array:
            return f"{self.opening}{self.lead}[{', '.join(shown)}]{self.closing}"
        return "".join(f"{self.opening}{text}{self.closing}" for text in shown)


TAGGED = JsonForm("<tool_call>", "</tool_call>", array=False)
"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and localspec's own pair."""
LLAMA = JsonForm("<|python_tag|>", argument_key="parameters", array=False, first_only=True)
"""`{"name": ..., "parameters": {...}}` and nothing else, maybe after `<|python_tag|>`: Llama 3."""
GRANITE = JsonForm("<|tool_call|>")
"""`<|tool_call|>[{"name": ..., "arguments": {...}}]`: Granite 3."""
COMMAND_R7B = JsonForm("<|START_ACTION|>", "<|END_ACTION|>", "", "tool_name", "parameters")
"""`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`: Command-R7B and A."""
COMMAND_R = JsonForm("Action:", "```", "```json", "tool_name", "parameters")
"""`Action:`, then a fence with `[{"tool_name": ..., "parameters": {...}}]`: Command-R and R+."""


@dataclass(frozen=True)
class ListForm(CallForm):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`: Mistral."""

    named: bool
    """The model writes the second of the two forms; both are read."""
    openings = ("[TOOL_CALLS]",)
    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _HEAD = re.compile(r"\s*([a-zA-Z0-9_.:/-]+)\s*(?:\[CALL_ID\]\s*[a-zA-Z0-9]+\s*)?(?:\[ARGS\])?\s*(?=\{)")
    _BEGUN = re.compile(r"[\sa-zA-Z0-9_.:/\[\]-]{0,300}")

    def steps(self, reader: CallReader) -> Reading:
        opening = len("[TOOL_CALLS]")
        while True:
            text = reader.text
            start = skip_space(text, opening)
            if text[start : start + 1] == "[":
                return (yield from reader.array(start))
            if (found := self._HEAD.match(text, opening)) is not None:
                return (yield from reader.arguments(found[1], found.end()))
            begun = self._BEGUN.match(text, opening)
            if begun is not None and begun.end() < len(text):
                raise NoCall(begun.end())
            if reader.final:
                name = text[opening:].lstrip().partition("[")[0].rstrip()
                raise NoCall(len(text), cut=reader.begins_name(name))
            yield

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening = mark("[TOOL_CALLS]")
        if not self.named:
            calls = 'object (", "? object)*' if many else "object"
            objects = object_rules(tools, "arguments", tail=r', ?"id": ?"[a-zA-Z0-9]+"')
            return f'calls: {opening} "[" {calls} "]"\n{objects}'
        calls = tool_rules(
            "call", tools, lambda tool, rule: f"{opening} {json.dumps(tool.name)} id? {mark('[ARGS]')} {rule}"
        )
        return f"calls: {'call+' if many else 'call'}\n{calls}\nid: {mark('[CALL_ID]')} /[a-zA-Z0-9]+/"


_LONGEST_HEAD = 512
"""Characters between the opening mark and the arguments; a name has at most 128. A choice."""


@dataclass(frozen=True)
class NamedForm(CallForm):
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
    def markers(self) -> tuple[str, ...]:
        return (self.before_all, self.call, *self.marks, *self.after, self.after_all)

    def steps(self, reader: CallReader) -> Reading:
        pattern = rf"(?:{re.escape(self.before_all)}\s*)?{re.escape(self.call)}{self.head}"
        before_arguments = re.compile(rf"{pattern}(?=\{{)")
        while (head := before_arguments.match(reader.text, 0, _LONGEST_HEAD)) is None:
            if reader.final or len(reader.text) >= _LONGEST_HEAD:
                cut = re.fullmatch(pattern, reader.text) if len(reader.text) < _LONGEST_HEAD else None
                if cut is not None and cut[1] in reader.tools:
                    return reader.cut(cut[1])
                at = max(len(opening) for opening in self.openings if reader.text.startswith(opening))
                raise NoCall(at, cut=reader.final and cut is None)
            yield
        end = yield from reader.arguments(head[1], head.end())
        return (yield from reader.closed(end, *(text.strip() for text in (*self.after, self.after_all))))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        before, between = (marked(text, self.markers, mark) for text in (self.before, self.between))
        after = " ".join(marked(text, self.markers, mark) for text in self.after)
        head = f"{mark(self.call)} {before}"
        rules = tool_rules("call", tools, lambda tool, rule: f"{head} {json.dumps(tool.name)} {between} {rule} {after}")
        calls = 'call ("\\n"? call)*' if many else "call"
        return f"calls: {mark(self.before_all)} {calls} {mark(self.after_all)}\n{rules}"

    def written(self, calls: Sequence[ToolCall]) -> str:
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
    `fenced`: as DeepSeek-V3 and R1 write it, with `function` before the name and a fence around the arguments; V3.1
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


# Calls as tags with plain text between them: they come in one piece.


@dataclass(frozen=True)
class TextForm(CallForm):
    """One call whose arguments are plain texts, each after its key."""

    HEAD: ClassVar[re.Pattern[str]]
    """All before the arguments; its group `name` is the tool's name."""
    ARGUMENT: ClassVar[re.Pattern[str]]
    """One argument: a group of its key, and one of its text."""
    TAGS: ClassVar[tuple[str, str]]
    """Beginnings of an argument, and of what ends them."""
    END: ClassVar[re.Pattern[str]]
    """All that ends them."""

    @abstractmethod
    def refused(self, text: str) -> int | None:
        """Where a text stops to look like a call; None = it does not."""

    def begins(self, text: str) -> bool:
        """Whether a text is the beginning of an argument, or of what ends them."""
        return any(text.startswith(tag) or tag.startswith(text) for tag in self.TAGS)

    def steps(self, reader: CallReader) -> Reading:
        since = 0
        while True:
            text = reader.text
            if (at := self.refused(text)) is not None:
                raise NoCall(at)
            if (ended := self.END.search(text, since)) is not None:
                break
            if reader.final:
                return self._read(reader, text, len(text), cut=True)
            since = max(0, len(text) - len(self.TAGS[1]))
            yield
        tagged = text.startswith("<tool_call>") and self.TAGS[1] != "</tool_call>"
        end = yield from reader.closed(ended.end(), *(["</tool_call>"] if tagged else []))
        return self._read(reader, text[: ended.start()], end)

    def _read(self, reader: CallReader, text: str, end: int, cut: bool = False) -> int:
        """Reads the call in a text without what ends it; one that was cut has the arguments that are complete.

        Returns:
            `end`: of the call, and of what is no call, if this is none.

        Raises:
            NoCall: it is none.
        """
        head = self.HEAD.match(text)
        if head is None or head["name"] not in reader.tools:
            raise NoCall(end, cut and (head is None or (head.end() == len(text) and reader.begins_name(head["name"]))))
        arguments, at = {}, head.end()
        properties = reader.tools[head["name"]].parameters.get("properties", {})
        while at < len(text):
            found = self.ARGUMENT.match(text, at)
            if found is None:
                if cut and self.begins(text[at:]):
                    break
                raise NoCall(end)
            arguments[found[1]] = _value(found[2], properties.get(found[1]))
            at = found.end()
        written = json.dumps(arguments, ensure_ascii=False)
        call = ToolCall(new_call_id(), head["name"], written[:-1] if cut else written)
        reader.parts += parts_of(call, whole=not cut)
        return end


def _value(text: str, schema: object) -> object:
    """A parameter's value; its text stands between two newlines that are not part of it."""
    text = text.removeprefix("\n").removesuffix("\n")
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return parse(text)
    except (ValueError, RecursionError):
        return text


class XmlForm(TextForm):
    """`<tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>`: Qwen3-Coder.

    A value is a string where the tool's schema says so; otherwise it is read as JSON, if it is some.
    """

    openings = ("<tool_call>", "<function=")
    markers = ("<tool_call>", "</tool_call>")
    HEAD = re.compile(r"(<tool_call>)?\s*<function=(?P<name>[^>\s]*)>\s*")
    ARGUMENT = re.compile(r"<parameter=([^>]*)>(.*?)</parameter>\s*", re.DOTALL)
    TAGS = ("<parameter=", "</function>")
    END = re.compile(r"</function>\s*")

    def refused(self, text: str) -> int | None:
        start = skip_space(text, len("<tool_call>") if text.startswith("<tool_call>") else 0)
        begun = text.startswith("<function=", start) or "<function=".startswith(text[start:])
        return None if begun else start

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening, closing = map(mark, self.markers)
        rules = [f"calls: {'call+' if many else 'call'}"]
        rules.append(f'call: {opening} "\\n" ({alternatives("function", tools)}) "\\n" {closing} "\\n"?')
        for index, tool in enumerate(tools):
            required = tool.parameters.get("required", ())
            names = []
            for number, key in enumerate(tool.parameters.get("properties", {})):
                name = f"parameter_{index}_{number}"
                names.append(name if key in required else name + "?")
                head = re.escape(f"<parameter={key}>").replace("/", r"\/")
                rules.append(rf"{name}[lazy]: /{head}\n(?s:.*)\n<\/parameter>\n/")
            if tool.open:
                rules.append(rf"parameter_{index}[lazy]: /<parameter=[^>\n]+>\n(?s:.*)\n<\/parameter>\n/")
                names.append(f"parameter_{index}*")
            head = json.dumps(f"<function={tool.name}>\n")
            rules.append(f'function_{index}: {head} {" ".join(names)} "</function>"')
        return "\n".join(rules)


class PairForm(TextForm):
    """`<tool_call>name <arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>`, a line each: GLM-4.5."""

    openings = ("<tool_call>",)
    markers = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    HEAD = re.compile(r"<tool_call>\s*(?P<name>[^\s<]+)\s*")
    ARGUMENT = re.compile(r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
    TAGS = ("<arg_key>", "</tool_call>")
    END = re.compile("</tool_call>")

    def refused(self, text: str) -> int | None:
        head = self.HEAD.match(text)
        return None if head is None or self.begins(text[head.end() :]) else head.start("name")

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        opening, closing, key_opening, key_closing, value_opening, value_closing = map(mark, self.markers)
        rules = ["calls: call (/\\n?/ call)*" if many else "calls: call"]
        rules.append(f"call: {opening} ({alternatives('function', tools)}) {closing}")
        rules.append(text_rule("value", "text", value_opening, value_closing))
        for index, tool in enumerate(tools):
            required = tool.parameters.get("required", ())
            pairs = []
            for key in tool.parameters.get("properties", {}):
                pair = f"({key_opening} {json.dumps(key)} {key_closing} /\\n?/ value /\\n?/)"
                pairs.append(pair if key in required else pair + "?")
            if tool.open:
                pairs.append(f"({key_opening} /[^<\\n]+/ {key_closing} /\\n?/ value /\\n?/)*")
            rules.append(f"function_{index}: {json.dumps(tool.name)} /\\n?/ {' '.join(pairs)}")
        return "\n".join(rules)


@dataclass(frozen=True)
class GemmaForm(CallForm):
    """`call:name{key:value,...}` between an opening and a closing mark."""

    opening: str
    closing: str
    quote: str
    """On both sides of a text."""
    _HEAD = re.compile(r"\s*call:([^\s{]+)\s*(?=\{)")
    _BEGUN = re.compile(r"\s*(?:c(?:a(?:l(?:l(?::[^\s{]*\s*)?)?)?)?)?")

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.opening,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing, self.quote)

    def steps(self, reader: CallReader) -> Reading:
        start, since = len(self.opening), 0
        while True:
            text = reader.text
            head = self._HEAD.match(text, start)
            begun = self._BEGUN.fullmatch(text, start)
            if head is None and (reader.final or begun is None):
                name = text[start:].strip().removeprefix("call:")
                raise NoCall(start, cut=begun is not None and (name in "call:" or reader.begins_name(name)))
            if head is not None:
                at = text.find(self.closing, since)
                if at >= 0 or reader.final:
                    break
                since = max(0, len(text) - len(self.closing))
            yield
        cut = at < 0
        end = len(text) if cut else at + len(self.closing)
        if head[1] not in reader.tools:
            raise NoCall(end)
        notation = _Notation(text[head.end() : len(text) if cut else at].rstrip(), self.quote)
        try:
            notation.object(0)
            whole, rest = True, notation.text[notation.at :].strip()
        except ValueError:
            whole, rest = False, ""
        if not (whole or cut) or (rest and not (cut and self.closing.startswith(rest))):
            raise NoCall(end)
        arguments = json.dumps(notation.outermost, ensure_ascii=False)
        call = ToolCall(new_call_id(), head[1], arguments if whole else arguments[:-1])
        reader.parts += parts_of(call, whole)
        return end

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """As every form's, but with any arguments."""
        opening, closing, quote = map(mark, self.markers)
        heads = " | ".join(json.dumps(f"call:{tool.name}{{") for tool in tools)
        rules = [f"calls: {'call+' if many else 'call'}", f'call: {opening} ({heads}) inside "}}" {closing}']
        rules.append(r'inside: (/[^{}]+/ | text | "{" inside "}")*')
        rules.append(text_rule("text", "end_of_text", quote, quote))
        return "\n".join(rules)


_MOST_LEVELS = 64
"""How deep values may be nested. A choice."""


class _Notation:
    """Reads Gemma's values of a text from `at` on; every method raises ValueError where there is none."""

    def __init__(self, text: str, quote: str) -> None:
        self.text, self.at = text, 0
        self._quote = re.escape(quote)
        self.outermost: dict[str, Any] = {}
        """Complete members of the outermost object."""

    def object(self, level: int) -> dict[str, Any]:
        found = self.outermost if level == 0 else {}
        for _ in self._items("{}"):
            key = self._quoted()
            if key is None:
                key = self._passed(r"\s*([^\s:{}\[\],]+)\s*(?=:)")[1]
            self._passed(":")
            found[key] = self._value(level + 1)
        return found

    def _items(self, brackets: str) -> Iterator[None]:
        """Stops where each item between brackets begins."""
        opening, closing = map(re.escape, brackets)
        self._passed(rf"{opening}[ \t\r\n]*")
        while self._passed(rf"({closing})?")[1] is None:
            yield
            self._passed(rf"[ \t\r\n]*(?:,[ \t\r\n]*|(?={closing}))")

    def _value(self, level: int) -> Any:
        self._passed(r"[ \t\r\n]*")
        if level > _MOST_LEVELS:
            raise ValueError(self.at)
        if self.text.startswith("{", self.at):
            return self.object(level)
        if self.text.startswith("[", self.at):
            return [self._value(level + 1) for _ in self._items("[]")]
        quoted = self._quoted()
        if quoted is not None:
            return quoted
        plain = self._passed(r"[^{}\[\],]*(?=[{}\[\],])")[0].strip()
        try:
            return None if plain == "None" else parse(plain)  # a number or a word of JSON
        except ValueError:
            return plain

    def _quoted(self) -> str | None:
        """The text between two quotes; None = no quote stands here."""
        found: str | None = self._passed(rf"{self._quote}(.*?){self._quote}|(?!{self._quote})")[1]
        return found

    def _passed(self, pattern: str) -> re.Match[str]:
        found = re.compile(pattern, re.DOTALL).match(self.text, self.at)
        if found is None:
            raise ValueError(self.at)
        self.at = found.end()
        return found


GEMMA = GemmaForm("<|tool_call>", "<tool_call|>", '<|"|>')
"""Gemma 4."""
FUNCTION_GEMMA = GemmaForm("<start_function_call>", "<end_function_call>", "<escape>")
"""FunctionGemma."""


def form_of(source: str) -> CallForm | None:
    """The form that a template with tools asks for; None = one that is not known here."""

    def has(*marks: str) -> bool:
        return all(mark in source for mark in marks)

    known: list[tuple[bool, CallForm]] = [
        (has(*(mark for mark in HARMONY.markers if mark != CONSTRAIN)), HARMONY),
        (has("[TOOL_CALLS]"), ListForm(named=has("[ARGS]"))),
        (has("<function=", "<parameter="), XmlForm()),
        (has("<tool_call>", "<arg_key>", "<arg_value>"), PairForm()),
        (has(GEMMA.opening), GEMMA),
        (has(FUNCTION_GEMMA.opening), FUNCTION_GEMMA),
        (has(KIMI.call), KIMI),
        (has(COMMAND_R7B.opening), COMMAND_R7B),
        (has(GRANITE.opening), GRANITE),
        (has(DEEPSEEK_CALL), deepseek(fenced=has("```json"))),
        (has("<tool_call>"), TAGGED),
        (has("Action:", "```json", '"tool_name"'), COMMAND_R),
        (has("<|python_tag|>") or has("<|start_header_id|>", '"parameters"'), LLAMA),
    ]
    return next((form for asked, form in known if asked), None)
