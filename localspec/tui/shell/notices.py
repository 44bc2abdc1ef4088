"""What the engine warns of while the chat has the screen: a note in the corner instead of a line across it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOGGER = "localspec"


class _Notes(logging.Handler):
    def __init__(self, show: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


@contextmanager
def shown(show: Callable[[str], object]) -> Iterator[None]:
    """Hands warnings to a function, on whatever thread they come, instead of writing them to standard error."""
    logger, notes = logging.getLogger(_LOGGER), _Notes(show)
    written = logger.propagate
    logger.addHandler(notes)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.propagate = written
