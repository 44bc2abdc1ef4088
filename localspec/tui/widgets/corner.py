"""Notes in the corner, which go after a while."""

from __future__ import annotations

from textual.message_pump import MessagePump

from localspec.chat.plain_text import plain_text


def say(node: MessagePump, text: str, problem: bool = False) -> None:
    """Says something in the corner; the text may quote what comes from outside."""
    app, said = node.app, plain_text(text)
    for note in [note for note in app._notifications if note.message == said]:  # has no public name
        app._unnotify(note, refresh=False)  # said again, it stands there once
    app.notify(
        said,
        severity="warning" if problem else "information",
        timeout=8 if problem else 4,
        markup=False,
    )
