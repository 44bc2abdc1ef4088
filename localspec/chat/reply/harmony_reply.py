"""An answer in gpt-oss's form taken apart while it streams: its messages by their channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.chat.reply.call_form import CallReader
from localspec.chat.reply.call_json import NoCall
from localspec.chat.reply.harmony_form import CHANNEL, END, HARMONY, HEADER, LONGEST_HEADER, MESSAGE, NEXT, called
from localspec.chat.reply.reply import Content, Parser, Part, Reasoning
from localspec.chat.reply.tool import Tool
from localspec.chat.turn import Message
from localspec.engine.stop import overlap

_ENDS = (END, "<|call|>", "<|return|>")
_HEADS = (CHANNEL, "to=functions.")
_BETWEEN = "\n\n"
"""Between two messages of one kind."""


class HarmonyParser(Parser):
    """As `ReplyParser`: the channel *analysis* is thinking, a recipient makes a call, and anything else is content.

    Headers are no part of any text. What has none, or calls a tool that there is not, is content as it stands.
    """

    def __init__(self, *, within: str | None, tools: Sequence[Tool] = (), parallel: bool = True) -> None:
        """
        Args:
            within: the channel in which the answer goes on; None = a header comes first.
            tools: what it may call.
            parallel: as for `ReplyParser`.
        """
        super().__init__(parallel)
        self._tools = tools
        self._kind: type[Content] | type[Reasoning] | None = None
        """Of the message that is being read; None = a header comes next."""
        if within is not None:
            self._kind = Reasoning if within == "analysis" else Content
        self._said: set[type[Part]] = set()
        self._fresh = False  # a message has begun and nothing of it was said

    def _next(self, parts: list[Part], final: bool) -> bool:
        if self._reader is not None:
            return self._read_call(parts, self._reader, final)
        if self._kind is None:
            return self._read_header(parts, final)
        return self._read_message(parts, self._kind, final)

    def _read_header(self, parts: list[Part], final: bool) -> bool:
        """Finds out what kind of message comes; False = more text is needed, or none is left."""
        text = self._held.lstrip()
        if not text:
            return False
        head = HEADER.match(self._held)
        if head is not None:
            if called(head) is not None:
                self._reader = HARMONY.reader(self._tools)
                return True
            self._held = self._held[head.end() :]
            self._kind, self._fresh = Reasoning if head["channel"] == "analysis" else Content, True
            return True
        if not _may_become_header(text) or MESSAGE in text or len(text) > LONGEST_HEADER:
            self._kind = Content
            if text.startswith(END):
                self._say(parts, Content(END))
                self._held = text.removeprefix(END)
            return True
        if final and "to=functions." in text:
            self._reader = HARMONY.reader(self._tools)
            return True
        return False

    def _read_message(self, parts: list[Part], kind: type[Content] | type[Reasoning], final: bool) -> bool:
        at = self._held.find(END)
        if at >= 0:
            self._say(parts, kind(self._held[:at]))
            self._held, self._kind = self._held[at:], None
            return True
        keep = 0 if final else overlap(self._held, END)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self._say(parts, kind(text))
        return False

    def _read_call(self, parts: list[Part], reader: CallReader, final: bool) -> bool:
        try:
            found = reader.read(self._held, final)
        except NoCall as no_call:
            self._reader = None
            self._kind, self._fresh = Content, True
            self._say(parts, Content(self._held[: no_call.at]))
            self._held = self._held[no_call.at :]
            return True
        for part in found.parts:
            self._take(parts, part)
        if found.end is None:
            return False
        self._reader = self._kind = None
        self._held = self._held[found.end :]
        return True

    def _say(self, parts: list[Part], part: Content | Reasoning) -> None:
        if not part.text:
            return
        kind = type(part)
        text = _BETWEEN + part.text if self._fresh and kind in self._said else part.text
        self._fresh = False
        self._said.add(kind)
        last = parts[-1] if parts else None
        if isinstance(last, Content | Reasoning) and type(last) is kind:
            parts[-1] = kind(last.text + text)
        else:
            parts.append(kind(text))


def unheaded(message: Message) -> Message:
    """A message for the template, which refuses headers: those of an answer as the model wrote it are taken out."""
    if message.role != "assistant" or CHANNEL not in message.content:
        return message
    parser = HarmonyParser(within=None)
    parts = [*parser.push(message.content), *parser.finish()]
    content = "".join(part.text for part in parts if isinstance(part, Content))
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
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
