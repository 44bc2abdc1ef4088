"""Large grammars tried in a process of their own, with an end: some take minutes, gigabytes or the whole stack."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.grammar.grammar import LARGE, TRYING, Grammar, byte_matcher, deeply

SECONDS = 8.0
"""Time for a trial, the start of its process included: 4,000 rules of GBNF take 8 s, 1,000 take 0.6 s."""
MEMORY = 1 << 30
"""Bytes of address space for a trial. 20,000 rules take 200 MB."""
_KEPT = 64
"""Grammars that passed and are remembered: an application sends the same tools with every request."""
_UNWANTED = "The grammar is not wanted any more."
_LOOK = 0.05
"""Seconds between two looks at whether the result is wanted any more."""


class Trials:
    """Reads grammars, large ones after they passed a trial. Thread-safe."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._passed: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, grammar: Grammar, cancel: Callable[[], bool] = lambda: False) -> Grammar:
        """What `Grammar.read` makes of it, unless `cancel` says that it is not wanted any more; a large one has been
        compiled elsewhere, with a vocabulary of bytes, before."""
        if len(grammar.source) <= LARGE:
            return grammar.read()
        key = hashlib.sha256(f"{grammar.kind}:{grammar.source}".encode("utf-8", "replace")).hexdigest()
        found = self._passed.get(key) or self._try(grammar, cancel)
        with self._lock:
            self._passed[key] = found
            self._passed.move_to_end(key)
            while len(self._passed) > _KEPT:
                self._passed.popitem(last=False)
        return replace(found, name=grammar.name or found.name, trigger=grammar.trigger)

    def _try(self, grammar: Grammar, cancel: Callable[[], bool]) -> Grammar:
        if cancel():
            raise Cancelled(_UNWANTED)
        called, plain = grammar.name or "grammar", Grammar(grammar.kind, grammar.source)
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(sender, plain, self._seconds), daemon=True)
        process.start()
        sender.close()
        until = time.monotonic() + self._seconds
        try:
            while not receiver.poll(_LOOK):
                if cancel():
                    raise Cancelled(_UNWANTED)
                if time.monotonic() > until:
                    raise UsageError(f"The {called} takes more than {self._seconds:g} s to read. Make it smaller.")
            found: Grammar | str = receiver.recv()
        except (EOFError, OSError):
            raise UsageError(f"The {called} takes too much memory or nests too deeply. Make it smaller.") from None
        finally:
            process.kill()
            process.join()
            process.close()
            receiver.close()
        if isinstance(found, str):
            raise UsageError(found)
        return found


def _child(sender: Connection, grammar: Grammar, seconds: float) -> None:
    """Sends the grammar as it was read, or what is wrong with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this
    nowhere = os.open(os.devnull, os.O_WRONLY)  # what a crash says is of no use to a reader of the log
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    with suppress(ImportError):  # Windows has no limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        cpu = math.ceil(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def compiled() -> Grammar:
        read = grammar.read()
        matcher = byte_matcher(read)
        if not matcher.is_error():  # what is wrong with it is found again, and reported, where it is used
            matcher.compute_bitmask()
        return read

    try:
        sender.send(deeply(compiled, TRYING))
    except LocalspecError as error:
        sender.send(error.message)


def _end_with_the_server() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
