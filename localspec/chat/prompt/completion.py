"""Text completion in place of a chat: all that a base model can do, which has no chat template."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.turn import Message
from localspec.errors import ModelError

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

    Raises:
        ModelError: there is a system message, which has no place in a text that goes on.
    """
    if any(message.role == "system" for message in messages):
        raise ModelError(
            "The model has no chat template, so that a system message has no place.",
            "Leave it out, or use a model that was trained for chats.",
        )
    return "".join(message.content for message in messages)
