"""What the model sees of a chat: its active path as template messages, within the window the user chose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from localspec.chat.archive.message import Attachment, Chat, StoredMessage
from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.types import SamplingParams

_SUMMARY = "Summary of the conversation so far:"
_FENCE = re.compile(r"^ {0,3}(`{3,})", re.MULTILINE)


def prompt_messages(chat: Chat, path: Sequence[StoredMessage]) -> list[Message]:
    """System prompt, then the path from the window's first message on; a window that the path does not meet is none.

    Reasoning is left out, as chat templates want it; so are answers that never got a word.
    """
    start = window_start(chat, path)
    seen = path[start:]
    summary = f"{_SUMMARY}\n{chat.window_summary}" if start is not None and chat.window_summary else ""
    system = "\n\n".join(part for part in (chat.system, summary) if part.strip())
    messages = [Message("system", system)] if system else []
    for message in seen:
        content = with_attachments(message.content, message.attachments)
        if content.strip() or message.role != "assistant":
            messages.append(Message(message.role, content))
    return messages


def window_start(chat: Chat, path: Sequence[StoredMessage]) -> int | None:
    """Index of the first message of a path that the model sees, another version of it included; None = it sees all."""
    if chat.window_first is None:
        return None
    return next((at for at, message in enumerate(path) if chat.window_first in message.siblings), None)


def with_attachments(content: str, attachments: Sequence[Attachment]) -> str:
    """A message with its files in front of it, each in a fence that nothing inside can close."""
    return "\n\n".join([*(fenced(item) for item in attachments), *([content] if content else [])])


def fenced(attachment: Attachment) -> str:
    """A file as Markdown."""
    longest = max((len(run) for run in _FENCE.findall(attachment.content)), default=2)
    fence = "`" * (longest + 1)
    name = " ".join(attachment.name.split())
    end = "" if attachment.content.endswith("\n") else "\n"
    return f"File {name}:\n{fence}\n{attachment.content}{end}{fence}"


def sampling_params(params: Mapping[str, Any]) -> SamplingParams:
    """Sampling settings out of a chat's parameters; other keys are not looked at.

    Raises:
        UsageError: a value that cannot be; says which.
    """
    given: dict[str, Any] = {}
    for item in fields(SamplingParams):
        if item.name not in params:
            continue
        value = params[item.name]
        if item.name == "logit_bias":
            given["logit_bias"] = _biases(value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{item.name} is {value!r}; it must be a number.")
        elif item.name in ("top_k", "penalty_last_n") and value != int(value):
            raise UsageError(f"{item.name} is {value!r}; it must be a whole number.")
        else:
            given[item.name] = int(value) if item.name in ("top_k", "penalty_last_n") else float(value)
    return SamplingParams(**given)


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(token), float(bias)) for token, bias in value)
    except (TypeError, ValueError):
        raise UsageError(f"logit_bias is {value!r}; it must be pairs of a token and a number.") from None
