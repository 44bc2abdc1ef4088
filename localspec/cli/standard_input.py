"""Standard input as text: never other text than what was sent, and never waited for without a word."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from localspec.chat.text_file import decoded, encoding_of
from localspec.errors import UsageError

NAME = "standard input"
"""What messages call it."""
MOMENT = 1.0
"""Seconds after which an input that sent nothing is said to be silent: programs that start in one pipe take less."""
_BLOCK_BYTES = 1 << 16
"""Bytes asked for at once: what a pipe holds on Linux."""


def is_piped() -> bool:
    """Whether something else than a person at a terminal may write to it."""
    return not sys.stdin.isatty()


def read_all() -> str:
    """All of it, however long it takes; one line on standard error says so where nothing comes for a moment.

    Raises:
        UsageError: it is no text, or cannot be read.
    """
    source = _Source()
    if not source.begun.wait(MOMENT):
        print("localspec: waiting for standard input.", file=sys.stderr)
    return source.text()


def read_if_sent(hint: str) -> str:
    """All of it, or "" where nothing comes for a moment, which one line on standard error says.

    Args:
        hint: how to have it waited for.

    Raises:
        UsageError: it is no text, or cannot be read.
    """
    source = _Source()
    if source.begun.wait(MOMENT):
        return source.text()
    print(f"localspec: standard input was left alone, as nothing came within {MOMENT:g} s. {hint}", file=sys.stderr)
    return ""


def lines() -> Iterator[str]:
    """Its lines as they come, without their ends.

    Raises:
        UsageError: it is no text, or cannot be read.
    """
    buffer: Any = sys.stdin.buffer
    first = True
    while data := _read(buffer.readline):
        if first and encoding_of(data) != "utf-8":  # a line of UTF-16 ends in the middle of a character
            yield from decoded(data + _read(buffer.read), NAME).splitlines()
            return
        first = False
        yield decoded(data, NAME).removesuffix("\n")


def _read(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except OSError as error:
        raise UsageError(f"Cannot read {NAME}: {error.strerror or error}.") from None


class _Source(threading.Thread):
    """Reads to the end on a thread of its own, since a pipe cannot be asked on every system whether it holds anything.

    The thread ends with the process, so what is never sent keeps nothing from ending.
    """

    def __init__(self) -> None:
        super().__init__(name="localspec-stdin", daemon=True)
        self.begun = threading.Event()
        """Something came, or the end."""
        self._blocks: list[bytes] = []
        self._fault: UsageError | None = None
        # Not through Python's buffer: its lock, held at the end of the process, is a fatal error.
        buffer: Any = sys.stdin.buffer
        self._file = getattr(buffer, "raw", buffer)
        self.start()

    def run(self) -> None:
        try:
            while block := _read(lambda: self._file.read(_BLOCK_BYTES)):
                self._blocks.append(block)
                self.begun.set()
        except UsageError as fault:
            self._fault = fault
        self.begun.set()

    def text(self) -> str:
        """Waits for the end."""
        self.join()
        if self._fault is not None:
            raise self._fault
        return decoded(b"".join(self._blocks), NAME)
