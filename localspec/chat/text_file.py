"""Text of files and pipes: UTF-8, or what a byte order mark says. Anything else is refused, not guessed."""

from __future__ import annotations

import codecs
import os
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from localspec import paths
from localspec.errors import UsageError, explained

LARGEST = 512 * 1024  # bytes of a file that can be attached: more would fill any context here many times over
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: its mark begins with UTF-16's
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks, and Python's name of the encoding that takes them off."""
_HINT = "Convert it first: iconv -f LATIN1 -t UTF-8, or whatever it is in place of LATIN1."


def encoding_of(data: bytes) -> str:
    """Python's name of the encoding that the first bytes of a text state; UTF-8 where they state none."""
    return next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")


def decoded(data: bytes, name: str) -> str:
    """The text of a file's bytes, with lines that end in a line feed; `name`: what the message calls it.
    Raises UsageError: it is not UTF-8, nor what its byte order mark says; or it holds a zero, as UTF-16 without a mark
    and files that are no text do.
    """
    try:
        text = data.decode(encoding_of(data))
    except UnicodeDecodeError:
        raise UsageError(f"Cannot read {name}: it is not UTF-8 text.", _HINT) from None
    if "\0" in text:
        raise UsageError(f"Cannot read {name}: it is not UTF-8 text, as it holds zero bytes.", _HINT)
    return text.replace("\r\n", "\n").replace("\r", "\n")


_MOMENT = 1.0
"""Seconds in which a program must write to a pipe: those that start together take less."""


def read_text(path: str | Path) -> str:
    """A text file, or what is written to a pipe until it is closed.
    Raises UsageError: it cannot be read as text; or it is a pipe that no program writes to.
    """
    file = paths.typed(path) if isinstance(path, str) else path
    with explained(f"Cannot read {path}", UsageError):
        data = _from_pipe(file) if paths.is_pipe(file) else file.read_bytes()
    return decoded(data, str(path))


def _from_pipe(path: Path) -> bytes:
    """All that is written to a pipe. Opening it for reading alone would wait for its writer."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(number, "rb", buffering=0) as pipe:
        begun, end = b"", monotonic() + _MOMENT
        with suppress(BlockingIOError):  # a program has it open that has not written yet
            while not begun and monotonic() < end:
                begun = os.read(number, 1)
                sleep(0 if begun else 0.02)
            if not begun:
                raise UsageError(f"Nobody writes to the pipe {path}.", "Start the program that does first.")
        os.set_blocking(number, True)
        return begun + pipe.readall()


def check_text(text: str, name: str) -> None:
    """Refuses a word of the command line whose bytes were no UTF-8 (Python keeps such bytes as lone surrogates).
    Raises UsageError: says which.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{name} is not UTF-8 text.", "What the shell expands there has another encoding.")
