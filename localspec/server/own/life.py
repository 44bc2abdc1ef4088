"""The life of a process that has one model: it loads, and tells of it.

What is told are lines of JSON, each with its `event`: loading (what, share), ready (facts of the models) or failed (an
error), state (outdated: why it answers nothing any more), log (name, level, text), what was counted (see `Telling`),
and each second a pulse (silent, longest: see `Engine.silence`). Nothing of a server is imported here: loading begins
before.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from localspec.errors import told
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Signs
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.pool import Pool

Hear: TypeAlias = Callable[[str | None], object]
"""Takes a line, on any thread; None = it was the last."""
_KEPT = ("loading", "ready", "failed", "state")
"""Events whose last line each new listener gets."""


class Life:
    """Of the process, which is to end with its last listener. Thread-safe."""

    def __init__(self, pool: Pool) -> None:
        """`pool`: its default is loaded and stays until it is closed; done by `close`."""
        self.pool = pool
        self.engine: Engine | None = None
        """None until it is ready."""
        self.ending = False
        self._lock = threading.Lock()  # of what is below
        self._listeners: list[Hear] = []
        self._kept: dict[str, str] = {}
        self._early: list[str] = []
        """Log lines from before the first listener."""
        self._signs = Signs()
        self._outdated = ""
        self._thread = threading.Thread(target=self._load, name="localspec-load", daemon=True)

    def load(self) -> None:
        logger = logging.getLogger("localspec")
        logger.addHandler(_Handler(self))
        logger.propagate = False
        self._thread.start()

    def close(self) -> None:
        """Closes the pool, which ends all answers. On a thread: it takes a pass, or until loading gives up."""
        self.pool.close()
        self._thread.join()

    def say(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event} | facts) + "\n"
        with self._lock:
            if event in _KEPT:
                self._kept[event] = line
            elif event == "log" and not self._listeners:
                self._early.append(line)
            for hear in self._listeners:
                hear(line)

    def say_state(self) -> None:
        """Tells whether models that are loaded are of use."""
        if self.engine is not None:
            self.say("state", outdated=self.engine.outdated)

    def pulse(self) -> None:
        """Says a sign of life, and what has changed."""
        silent, longest = self._signs.silent, self._signs.longest
        if self.engine is not None:
            silent, longest = self.engine.silence
            if self.engine.outdated != self._outdated:
                self._outdated = self.engine.outdated
                self.say_state()
        self.say("pulse", silent=silent, longest=longest)

    def join(self, hear: Hear) -> None:
        """One more listener: hears what was said that counts, and all that will be."""
        with self._lock:
            for line in (*self._early, *self._kept.values()):
                hear(line)
            self._early.clear()
            self._listeners.append(hear)

    def leave(self, hear: Hear) -> None:
        with self._lock:
            self._listeners.remove(hear)
        self.check_alone()

    def check_alone(self) -> None:
        """It ends where there is no listener."""
        self.ending = self.ending or not self._listeners

    def end(self) -> None:
        with self._lock:
            for hear in self._listeners:
                hear(None)

    def _load(self) -> None:
        def report(what: str, share: float) -> None:
            self._signs.alive()
            self.say("loading", what=what, share=share)

        try:
            engine = self.pool.lease(self.pool.default, report).engine  # never given back
            facts = asdict(facts_of(engine))
        except Exception as error:  # noqa: BLE001 - the worker's edge: each listener raises it
            self.say("failed", **told(error))
            return  # the listeners hear of it, and go
        self.engine = engine
        self.say_state()
        self.say("ready", **facts)


class _Handler(logging.Handler):
    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def emit(self, record: logging.LogRecord) -> None:
        self._life.say("log", name=record.name, level=record.levelno, text=record.getMessage())


def facts_of(engine: Engine) -> ModelFacts:
    """What does not change."""
    from localspec.checks.doctor import examine_layers

    return replace(engine.facts, layers=tuple(one.value for one in examine_layers(engine.loaded)))
