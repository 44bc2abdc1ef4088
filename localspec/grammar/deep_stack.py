"""A stack for work that recurses as deep as its input says: llguidance ends the whole process where its stack ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

COMPILING = 64 << 20
"""Bytes of stack for compiling grammars; only what is used of it takes memory. A chain of references in a schema takes
about 10 KB a link, so that 16 KB of schema need less than 10 MB."""
TRYING = 16 << 20
"""Bytes of stack for trying them: what passes there has room for four times as much."""
_Result = TypeVar("_Result")
_SIZE = threading.Lock()


def deeply(work: Callable[[], _Result], stack: int = COMPILING) -> _Result:
    """What `work` returns or raises, run on a thread of its own with `stack` bytes of stack."""
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            errors.append(error)

    thread = threading.Thread(target=run, name="localspec-grammar", daemon=True)
    with _SIZE:  # the size holds for all threads that start meanwhile
        before = threading.stack_size(stack)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
