"""gpt-oss's form: an answer is messages, each after a header with a channel and, for a call, the tool's name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.chat.reply.call_form import CallReader, Found, Mark, argument_rules, marked, names_of
from localspec.chat.reply.call_json import Arguments, NoCall
from localspec.chat.reply.call_part import CallBegun, CallEnded
from localspec.chat.reply.reply import Thought
from localspec.chat.reply.tool import Tool, new_call_id

if TYPE_CHECKING:
    from localspec.chat.turn import Message

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
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)[^<]*<\|message\|>")
_CUT = re.compile(r"[^\n]*?\bto=functions\.([^\s<]+)[\s<]")


class HarmonyForm:
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}`; an end token ends each call."""

    openings: tuple[str, ...] = (CHANNEL,)
    markers: tuple[str, ...] = (START, CHANNEL, MESSAGE, CONSTRAIN, END)
    first_only = False

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """A reader for one call, its header included."""
        return _HarmonyReader(names_of(tools))

    def lark(self, tools: Sequence[Tool], many: bool, mark: Mark) -> str:
        """Rules of a Lark grammar: one call of these tools; the model ends its turn after each."""
        rules = ["calls: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
        rules.append(f'kind: " json" | " "? {mark(CONSTRAIN)} "json"')
        names, arguments = argument_rules(tools)
        for index, tool in enumerate(tools):
            name = json.dumps(f" to=functions.{tool.name}")
            head = f'{mark(CHANNEL)} "commentary" {name} | {name} {mark(CHANNEL)} "commentary"'
            rules.append(f"call_{index}: ({head}) kind? {mark(MESSAGE)} {names[index]}")
        return "\n".join([*rules, *arguments])

    def message(self, calls: str, mark: Mark) -> str:
        """A grammar for the header of one message, or a call.

        Args:
            calls: the rules of `lark`.
            mark: names a marker.
        """
        header = f'{mark(CHANNEL)} ("analysis" | "commentary" | "final") {mark(MESSAGE)}'
        return f"start: {self._marked(NEXT, mark)} (header | calls)\nheader: {header}\n{calls}"

    def whole(self, channel: str | None, start: str, mark: Mark) -> str:
        """A grammar for all that follows a prompt: a thought, if the model wants one, and what must come.

        Args:
            channel: in which the answer goes on; None = a header comes first.
            start: rules, the first of which are the alternatives for what must come.
            mark: names a marker.
        """
        body, _, rules = start.partition("\n")
        following, end = self._marked(NEXT, mark), mark(END)
        special = end.startswith("<")
        rest = f"inside {end} {following}" if special else f"inside {following}"
        lines = [rules, "inside: /(?s:.*)/" if special else f"inside[suffix={end}]: /(?s:.*)/"]
        if channel not in (None, "analysis"):
            body = re.sub(r"\bcalls\b", f"{end} {following} calls", body)
            return f"start: {body}\n{rules}"
        said = re.sub(r"\banswer\b", f"{self._marked(ANSWER, mark)} answer", body)
        thought = rest if channel == "analysis" else f"({self._marked(THOUGHT.opening, mark)} {rest})?"
        return "\n".join([f"start: {thought} ({said})", *lines])

    def _marked(self, text: str, mark: Mark) -> str:
        return marked(text, self.markers, mark)


class _HarmonyReader:
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._arguments: Arguments | None = None

    def read(self, text: str, final: bool) -> Found:
        if self._arguments is None:
            head = HEADER.match(text)
            if head is None:  # it was cut
                cut = _CUT.match(text)
                return self._cut(None if cut is None else cut[1], text)
            name = called(head)
            rest = text[head.end() :].lstrip()
            if name not in self._names or (rest and not rest.startswith("{")):
                raise NoCall(head.end())
            if not rest:
                return self._cut(name, text) if final else Found([], None)
            self._arguments = Arguments(name, len(text) - len(rest))
        parts = self._arguments.read(text, final)
        return Found(parts, len(text) if final and self._arguments.end is None else self._arguments.end)

    def _cut(self, name: str | None, text: str) -> Found:
        """A call that ends before its arguments; nothing, if its name is not whole."""
        if name is None:
            return Found([], len(text))
        if name not in self._names:
            raise NoCall(len(text))
        return Found([CallBegun(new_call_id(), name), CallEnded(whole=False)], len(text))


def called(header: re.Match[str]) -> str | None:
    """The name of the function that a header calls; None = it calls none."""
    recipient = header["before"] or header["after"]
    return None if recipient is None else recipient.removeprefix("functions.")


def within(message: str) -> str | None:
    """The channel of a message that has begun; None = its header is not there.

    Args:
        message: its beginning.
    """
    found = _CHANNEL.search(message)
    return None if found is None else found[1]


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Messages as the template takes them: each call alone, then its result; words before a call are thoughts."""
    found: list[Message] = []
    waiting = list(messages)
    while waiting:
        message = waiting.pop(0)
        if not message.tool_calls:
            found.append(message)
            continue
        results: list[Message] = []
        while waiting and waiting[0].role == "tool":
            results.append(waiting.pop(0))
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
