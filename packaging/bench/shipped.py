"""Prompts for benchmarks: first user turns of the held-out prompts that ship with the bundled pair."""

from __future__ import annotations

from localspec import Engine, Message
from localspec.checks.prompts import load_prompts
from localspec.types import Tokens


def short_prompts(engine: Engine, count: int, longest: int) -> list[Tokens]:
    """`count` prompts of at most `longest` tokens, spread over the file, as tokens of the engine's chat template."""
    found = []
    for prompt in load_prompts():
        messages = [Message(message.role, message.content) for message in prompt.messages]
        end = next(i for i, message in enumerate(messages) if message.role == "user") + 1
        tokens = engine.chat_tokens(messages[:end])
        if len(tokens) <= longest:
            found.append(tokens)
    return found[:: max(1, len(found) // count)][:count]
