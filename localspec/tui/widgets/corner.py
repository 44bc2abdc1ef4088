"""Notes in the corner, which go after a while; what the engine warns of is one, instead of a line across the screen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


class _Notes(logging.Handler):
    def __init__(self, show: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


@contextmanager
def shown(show: Callable[[str], object]) -> Iterator[None]:
    """Hands warnings to a function, on whatever thread they come, instead of writing them to standard error."""
    logger, notes = logging.getLogger("localspec"), _Notes(show)
    written = logger.propagate
    logger.addHandler(notes)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.propagate = written
