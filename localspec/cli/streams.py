"""The standard streams of a process that was started without some of them, as services start programs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""Their names in `sys`, in the order of their numbers, and how they are opened."""


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
