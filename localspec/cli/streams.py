"""The standard streams: those a process was started without, as services start programs, and what they cannot take."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""Their names in `sys`, in the order of their numbers, and how they are opened."""


_NAMES = "localspec.names"
"""The handler of what UTF-8 does not have, as `codecs` knows it."""


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
