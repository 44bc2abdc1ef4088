"""Prompts for checks: the held-out ones shipped with the bundled pair, or a user's own file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.runtime.engine import Engine
from localspec.types import Tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to be answered turn by turn."""

    name: str
    messages: tuple[Message, ...]
    """All but the assistant's messages of the file: the model answers for itself, after each but a system message."""
    answer: str = ""
    """The right answer to the last message, where there is one."""


def text_for_completion(messages: Sequence[Message]) -> str:
    """What a base model, which has no chat template, goes on with: the messages, a line each."""
    return "\n".join(message.content for message in messages) + "\n"


def prompt_tokens(engine: Engine, messages: Sequence[Message]) -> Tokens:
    """The tokens of a conversation by the model's chat template; a base model completes its text."""
    if engine.template.exists:
        return engine.chat_tokens(messages)
    return engine.tokenize(text_for_completion(messages), special=False)


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """Reads JSON lines with `messages` (or `prompt`), and optionally `id` and `answer`; None = the shipped ones.

    Raises:
        UsageError: the file cannot be read, or a line is not of this form; says which.
    """
    path = path or paths.bundled("prompts.jsonl")
    prompts = list(_parse(path, read_text(path)))
    if not prompts:
        raise UsageError(f"{path} has no prompts.")
    return prompts


def _parse(path: Path, text: str) -> Iterator[Prompt]:
    for number, row in enumerate(text.splitlines(), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
            messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
            kept = tuple(_message(message) for message in messages if message["role"] != "assistant")
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{path}, line {number}: it must be an object with `messages` or `prompt`.") from None
        yield Prompt(str(line.get("id", number)), kept, str(line.get("answer", "")))


def _message(message: dict[str, Any]) -> Message:
    return Message(str(message["role"]), str(message["content"]))
