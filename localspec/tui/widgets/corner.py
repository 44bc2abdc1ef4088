"""Notes in the corner, which go after a while."""

from __future__ import annotations

from textual.message_pump import MessagePump

from localspec.chat.plain_text import plain_text


def say(node: MessagePump, text: str, problem: bool = False) -> None:
    """Says something in the corner; the text may quote what comes from outside."""
    node.app.notify(
        plain_text(text),
        severity="warning" if problem else "information",
        timeout=8 if problem else 4,
        markup=False,
    )
