"""gpt-oss's form of calls, an answer in it taken apart while it streams, and thoughts apart and joined again.

Each message of an answer has a header with a channel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from localspec.chat.reply.call_form import CallForm, CallReader, Mark, NoCall, Reading, marked, tool_rules
from localspec.chat.reply.reply import THOUGHTS, AnswerParser, Content, Part, Reasoning, ReplyParser, Thought
from localspec.chat.reply.tool import Tool
from localspec.chat.turn import Message
from localspec.engine.slot import overlap

START, CHANNEL, MESSAGE, CONSTRAIN, END = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"
THOUGHT = Thought(f"{CHANNEL}analysis{MESSAGE}", END)
"""Marks of a thought."""
ANSWER = f"{CHANNEL}final{MESSAGE}"
"""Header of the answer itself."""
NEXT = f"{START}assistant"
"""Before the header of each message; the prompt ends with it."""
HEADER = re.compile(
    r"(?:<\|(?:end|call|return)\|>)?\s*(?:<\|start\|>assistant)?(?:\s*to=(?P<before>[^\s<]+))?\s*"
    r"<\|channel\|>\s*(?P<channel>\w+)(?:\s+to=(?P<after>[^\s<]+))?[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
"""What stands before a message: a channel, and the recipient of a call on either side of it."""
LONGEST_HEADER = 512
"""Characters of a header; a tool's name has at most 128. A choice."""
BEGUN = re.compile(r"<\|channel\|>\s*(\w+)[^<]*<\|message\|>")
_CUT = re.compile(r"[^\n]*?\bto=functions\.([^\s<]+)[\s<]")


class HarmonyForm(CallForm):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}`; an end token ends each call."""

    openings = (CHANNEL,)
    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, END)

    def steps(self, reader: CallReader) -> Reading:
        head = HEADER.match(reader.text)
        if head is None:  # it was cut
            cut = _CUT.match(reader.text)
            if cut is not None and cut[1] not in reader.tools:
                raise NoCall(len(reader.text))
            return len(reader.text) if cut is None else reader.cut(cut[1])
        name = called(head)
        while True:
            rest = reader.text[head.end() :].lstrip()
            if name is None or name not in reader.tools or (rest and not rest.startswith("{")):
                raise NoCall(head.end())
            if rest:
                return (yield from reader.arguments(name, len(reader.text) - len(rest)))
            if reader.final:
                return reader.cut(name)
            yield

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """As every form's, but always one call: the model ends its turn after each."""

        def body(tool: Tool, arguments: str) -> str:
            name = json.dumps(f" to=functions.{tool.name}")
            head = f'{mark(CHANNEL)} "commentary" {name} | {name} {mark(CHANNEL)} "commentary"'
            return f"({head}) kind? {mark(MESSAGE)} {arguments}"

        return f'calls: call\n{tool_rules("call", tools, body)}\nkind: " json" | " "? {mark(CONSTRAIN)} "json"'

    def message(self, calls: str, mark: Mark) -> str:
        """A grammar for the header of one message, or a call; `calls`: the rules of `lark`."""
        header = f'{mark(CHANNEL)} ("analysis" | "commentary" | "final") {mark(MESSAGE)}'
        return f"start: {marked(NEXT, self.markers, mark)} (header | calls)\nheader: {header}\n{calls}"

    def whole(self, channel: str | None, start: str, mark: Mark) -> str:
        """A grammar for all that follows a prompt: a thought, if the model wants one, and what must come.

        Args:
            channel: in which the answer goes on; None = a header comes first.
            start: rules, the first of which are the alternatives for what must come.
        """
        body, _, rules = start.partition("\n")
        following, end = marked(NEXT, self.markers, mark), mark(END)
        special = end.startswith("<")
        rest = f"inside {end} {following}" if special else f"inside {following}"
        lines = [rules, "inside: /(?s:.*)/" if special else f"inside[suffix={end}]: /(?s:.*)/"]
        if channel not in (None, "analysis"):
            body = re.sub(r"\bcalls\b", f"{end} {following} calls", body)
            return f"start: {body}\n{rules}"
        said = re.sub(r"\banswer\b", f"{marked(ANSWER, self.markers, mark)} answer", body)
        thought = rest if channel == "analysis" else f"({marked(THOUGHT.opening, self.markers, mark)} {rest})?"
        return "\n".join([f"start: {thought} ({said})", *lines])


def called(header: re.Match[str]) -> str | None:
    """The name of the function that a header calls; None = it calls none."""
    recipient = header["before"] or header["after"]
    return None if recipient is None else recipient.removeprefix("functions.")


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Messages as the template takes them: each call alone, then its result; words before a call are thoughts."""
    found: list[Message] = []
    waiting = list(messages)
    while waiting:
        message = waiting.pop(0)
        if not message.tool_calls:
            found.append(message)
            continue
        results = list(takewhile(lambda one: one.role == "tool", waiting))
        del waiting[: len(results)]
        thought = "\n\n".join(text for text in (message.reasoning, message.content) if text)
        for call in message.tool_calls:
            found.append(replace(message, content="", reasoning=thought, tool_calls=(call,)))
            thought = ""
            own = [result for result in results if result.tool_call_id == call.id]
            found += own
            results = [result for result in results if result not in own]
        found += results
    return found


HARMONY = HarmonyForm()
"""gpt-oss."""


# An answer in gpt-oss's form taken apart while it streams: its messages by their channels.

_ENDS = (END, "<|call|>", "<|return|>")
_HEADS = (CHANNEL, "to=functions.")
_BETWEEN = "\n\n"
"""Between two messages of one kind."""


class HarmonyParser(AnswerParser):
    """As `ReplyParser`: the channel *analysis* is thinking, a recipient makes a call, and anything else is content.

    Headers are no part of any text. What has none, or calls a tool that there is not, is content as it stands.
    """

    def __init__(self, *, within: str | None, tools: Sequence[Tool] = (), parallel: bool = True) -> None:
        """`within`: the channel in which the answer goes on; None = a header comes first."""
        super().__init__(tools, parallel)
        self._kind: type[Content] | type[Reasoning] | None = None
        """Of the message that is being read; None = a header comes next."""
        if within is not None:
            self._kind = Reasoning if within == "analysis" else Content
        self._said: set[type[Part]] = set()
        self._fresh = False  # a message has begun and nothing of it was said

    def _read_text(self) -> bool:
        if self._kind is None:
            return self._read_header()
        at = self._held.find(END)
        if at < 0:
            at = len(self._held) - (0 if self._final else overlap(self._held, END))
            self._say(self._kind, self._taken(at))
            return False
        self._say(self._kind, self._taken(at))
        self._kind = None
        return True

    def _read_header(self) -> bool:
        """Finds out what kind of message comes; False = more text is needed, or none is left."""
        text = self._held.lstrip()
        if not text:
            return False
        head = HEADER.match(self._held)
        if head is not None and called(head) is None:
            self._taken(head.end())
            self._kind, self._fresh = Reasoning if head["channel"] == "analysis" else Content, True
            return True
        if head is None and (not _may_become_header(text) or MESSAGE in text or len(text) > LONGEST_HEADER):
            self._kind = Content
            if text.startswith(END):
                self._say(Content, END)
                self._held = text.removeprefix(END)
            return True
        if head is not None or (self._final and "to=functions." in text):
            self._reader = CallReader(HARMONY.steps, self._tools)
            return True
        return False

    def _refused(self, no_call: NoCall) -> bool:
        self._kind, self._fresh = Content, True
        self._say(Content, self._taken(no_call.at))
        return True

    def _called(self) -> None:
        self._kind = None

    def _say(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if text:
            self._append(kind, _BETWEEN + text if self._fresh and kind in self._said else text)
            self._fresh = False
            self._said.add(kind)


def unheaded(message: Message) -> Message:
    """A message for the template, which refuses headers: those of an answer as the model wrote it are taken out."""
    if message.role != "assistant" or CHANNEL not in message.content:
        return message
    parser = HarmonyParser(within=None)
    parts = [*parser.push(message.content), *parser.finish()]
    content, thought = apart(parts)
    return replace(message, content=content, reasoning=message.reasoning or thought)


def _may_become_header(text: str) -> bool:
    """Whether a text that is no header may be the beginning of one."""
    rest = text
    for marks in (_ENDS, (NEXT,)):
        if any(mark.startswith(rest) for mark in marks):
            return True
        found = next((mark for mark in marks if rest.startswith(mark)), "")
        rest = rest.removeprefix(found).lstrip()
    return any(rest.startswith(mark) or mark.startswith(rest) for mark in _HEADS)


MARKS = THOUGHTS[0]
"""What endpoints write around thoughts that they leave in the text."""


def apart(parts: Iterable[Part]) -> tuple[str, str]:
    """(text, thinking) of what a `ReplyParser` has read."""
    said = list(parts)
    text = "".join(part.text for part in said if isinstance(part, Content))
    return text, "".join(part.text for part in said if isinstance(part, Reasoning))


def joined(thinking: str, text: str) -> str:
    """The answer as a model writes it, to go on from."""
    if not thinking:
        return text
    thought = f"{MARKS.opening}\n{thinking}"
    return f"{thought}\n{MARKS.closing}\n\n{text}" if text else thought


class Retelling:
    """An answer as it streams, where what a model writes is shown: gpt-oss's headers become the marks of `joined`."""

    def __init__(self, channels: bool) -> None:
        """`channels`: the answer has such headers; else it stays as it is."""
        self._parser: AnswerParser = HarmonyParser(within=None) if channels else ReplyParser()
        self._thinking = False

    def push(self, text: str) -> str:
        return self._told(self._parser.push(text))

    def finish(self) -> str:
        return self._told(self._parser.finish())

    def _told(self, parts: Iterable[Part]) -> str:
        told = ""
        for part in parts:
            if isinstance(part, Content | Reasoning):
                thinks = isinstance(part, Reasoning)
                if thinks is not self._thinking:
                    told += f"{MARKS.opening}\n" if thinks else f"\n{MARKS.closing}\n\n"
                self._thinking = thinks
                told += part.text
        return told
