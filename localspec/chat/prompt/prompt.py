"""The model's view of a chat: its active path within the user's window, and what is done when that is too long."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.archive.message import Attachment, Chat, StoredMessage
from localspec.chat.turn import Message, rounds
from localspec.errors import ModelError, UsageError
from localspec.settings import settings_of
from localspec.types import SamplingParams

_SUMMARY = "Summary of the conversation so far:"
_FENCE = re.compile(r"^ {0,3}(`{3,})", re.MULTILINE)


def prompt_messages(chat: Chat, path: Sequence[StoredMessage]) -> list[Message]:
    """System prompt, then the path from the window's first message on; a window that the path does not meet is none.

    Reasoning is left out, as chat templates want it; so are answers that never got a word or called anything.
    """
    start = window_start(chat, path)
    seen = path[start:]
    summary = f"{_SUMMARY}\n{chat.window_summary}" if start is not None and chat.window_summary else ""
    system = "\n\n".join(part for part in (chat.system, summary) if part.strip())
    messages = [Message("system", system)] if system else []
    return [*messages, *(shown for message in seen for shown in messages_of(message))]


def messages_of(message: StoredMessage) -> list[Message]:
    """What a model is shown of one message: an answer that called tools was several, an empty one is none."""
    messages, text, _ = rounds(message.content, "", message.calls)
    content = with_attachments(text, message.attachments)
    return [*messages, Message(message.role, content)] if content.strip() or message.role != "assistant" else messages


def window_start(chat: Chat, path: Sequence[StoredMessage]) -> int | None:
    """Index of the first message of a path that the model sees, another version of it included; None = it sees all."""
    if chat.window_first is None:
        return None
    return next((at for at, message in enumerate(path) if chat.window_first in message.siblings), None)


def with_attachments(content: str, attachments: Sequence[Attachment]) -> str:
    """A message with its files in front of it, each in a fence that nothing inside can close."""
    return "\n\n".join([*(fenced(item) for item in attachments), *([content] if content else [])])


def fenced(attachment: Attachment) -> str:
    return f"File {' '.join(attachment.name.split())}:\n{in_fence(attachment.content)}"


def in_fence(text: str) -> str:
    fence = "`" * (max((len(run) for run in _FENCE.findall(text)), default=2) + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"{fence}\n{text}{end}{fence}"


def sampling_params(params: Mapping[str, Any]) -> SamplingParams:
    """Sampling settings out of a chat's parameters; other keys are not looked at.
    Raises UsageError: a value that cannot be; says which.
    """
    given: dict[str, Any] = {}
    for row in settings_of(SamplingParams):
        value = params.get(row.name, row.default)
        if row.kind is tuple:
            if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
                raise UsageError(f"{row.name} is {value!r}; it must be a list of texts.")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{row.name} is {value!r}; it must be a number.")
        elif row.kind is int and value != int(value):
            raise UsageError(f"{row.name} is {value!r}; it must be a whole number.")
        given[row.name] = row.kind(value)
    biases = params.get("logit_bias", ())
    try:
        given["logit_bias"] = tuple((int(token), float(bias)) for token, bias in biases)
    except (TypeError, ValueError):
        raise UsageError(f"logit_bias is {biases!r}; it must be pairs of a token and a number.") from None
    return SamplingParams(**given)


# What to do with a chat that outgrows its context. Pure functions: the face asks, and keeps what was decided.
#
# `count` gives the tokens of a prompt, such as `lambda messages: len(engine.chat_tokens(messages))`.

Count = Callable[[Sequence[Message]], int]

_SUMMARISE = (
    "Summarise our conversation so far for yourself, so that you can go on with it without seeing it. Keep facts, "
    "names, numbers, decisions and open questions; leave out pleasantries. Answer with the summary alone, in at most "
    "400 words."
)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A prompt after its oldest turns were dropped."""

    messages: list[Message]
    dropped: int
    """How many of the messages after the system prompt were left out; they were the first."""
    tokens: int
    fits: bool
    """False: even the last turn alone is too long."""


def drop_oldest(messages: Sequence[Message], limit: int, count: Count) -> Trimmed:
    """The longest end of a chat that fits, cut before a user's message, with the system prompt in front.

    Args:
        messages: the whole prompt; the last turn is always kept.
        limit: tokens the prompt may have; leave room for the answer.
        count: called about log2(turns) times; more messages must not count less.
    """
    system = [message for message in messages[:1] if message.role == "system"]
    turns = list(messages[len(system) :])
    cuts = sorted({0, *(at for at, message in enumerate(turns) if message.role == "user")})

    def tokens(cut: int) -> int:
        return count([*system, *turns[cut:]])

    # the first cut that fits, or the last one
    cut = cuts[bisect_left(cuts, True, hi=len(cuts) - 1, key=lambda cut: tokens(cut) <= limit)]
    needed = tokens(cut)
    return Trimmed([*system, *turns[cut:]], cut, needed, needed <= limit)


def summary_request(messages: Sequence[Message]) -> list[Message]:
    """A prompt whose answer can stand for these messages, for `window_summary` of a chat."""
    asked = list(messages)
    if asked and asked[-1].role == "user":  # templates want turns to alternate
        return [*asked[:-1], Message("user", f"{asked[-1].content}\n\n{_SUMMARISE}")]
    return [*asked, Message("user", _SUMMARISE)]


MOST_TOKENS = 256
"""Tokens of a completion unless told otherwise: a base model seldom ends by itself, and would fill its context."""
NO_TEMPLATE = "no chat template: it completes text"
"""Of a base model, in a list."""


def note(name: str) -> str:
    """What a user is told when a base model has been loaded."""
    return (
        f"{name} has no chat template (a base model): it completes the text, at most {MOST_TOKENS} tokens at a time "
        "unless told otherwise."
    )


def continued(messages: Sequence[Message]) -> str:
    """The text of a conversation: what was written and what was completed, one right after the other.
    Raises ModelError: there is a system message, which has no place in a text that goes on.
    """
    if any(message.role == "system" for message in messages):
        raise ModelError(
            "The model has no chat template, so that a system message has no place.",
            "Leave it out, or use a model that was trained for chats.",
        )
    return "".join(message.content for message in messages)
