"""The standard streams: those a process was started without, as services start programs, and what they cannot take.

Standard input as text: never other text than what was sent, and never waited for without a word.
"""

from __future__ import annotations

import codecs
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from localspec.chat.text_file import decoded, encoding_of
from localspec.errors import UsageError, explained

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""Their names in `sys`, in the order of their numbers, and how they are opened."""

_NAMES = "localspec.names"  # the handler of what UTF-8 does not have, as `codecs` knows it


def prepare() -> None:
    """Makes standard streams that a command can write anything to: all are there, and no character is refused.

    Files and pipes get the bytes of a file's name that is not UTF-8 as they are, as from `ls`; a terminal gets a "?".
    """
    open_missing()
    codecs.register_error(_NAMES, _bytes_of_names)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace" if stream.isatty() else _NAMES)


def _bytes_of_names(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return b"".join(bytes([ord(one) & 0xFF]) if "\udc80" <= one <= "\udcff" else b"?" for one in letters), error.end


def open_missing() -> None:
    """Opens the null device in place of every standard stream that is closed.

    So reading meets the end, and what is written goes nowhere. Without this the next file that is opened would get
    the stream's number, and what a library writes to standard error would go into that file.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        file = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - open until the process ends
        try:
            os.fstat(number)
        except OSError:
            os.dup2(file.fileno(), number)
        os.set_inheritable(number, True)  # programs that are started get it, too
        setattr(sys, name, file)


def let_go_of_output() -> None:
    """Drops what standard output cannot take, so that the interpreter does not try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):  # ValueError: it has no number, as in tests
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


NAME = "standard input"  # what messages call it
MOMENT = 1.0
"""Seconds after which an input that sent nothing is said to be silent: programs that start in one pipe take less."""
_BLOCK_BYTES = 1 << 16  # bytes asked for at once: what a pipe holds on Linux


def read_all() -> str:
    """All of it, however long it takes; one line on standard error says so where nothing comes for a moment."""
    source = _Source()
    if not source.begun.wait(MOMENT):
        print("localspec: waiting for standard input.", file=sys.stderr)
    return source.text()


def read_if_sent(hint: str) -> str:
    """All of it, or "" where nothing comes for a moment, which standard error says with the hint how to wait."""
    source = _Source()
    if source.begun.wait(MOMENT):
        return source.text()
    print(f"localspec: standard input was left alone, as nothing came within {MOMENT:g} s. {hint}", file=sys.stderr)
    return ""


def lines() -> Iterator[str]:
    """Its lines as they come, without their ends."""
    buffer: Any = sys.stdin.buffer
    first = True
    while data := _read(buffer.readline):
        if first and encoding_of(data) != "utf-8":  # a line of UTF-16 ends in the middle of a character
            yield from decoded(data + _read(buffer.read), NAME).splitlines()
            return
        first = False
        yield decoded(data, NAME).removesuffix("\n")


def _read(read: Callable[[], bytes]) -> bytes:
    with explained(f"Cannot read {NAME}", UsageError):
        return read()


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
        self.join()
        if self._fault is not None:
            raise self._fault
        return decoded(b"".join(self._blocks), NAME)
