"""The life of a process that has one model: it loads, and tells of it.

What is told are lines of JSON, each with its `event`: loading (what, share), ready (facts of the models) or failed (an
error), state (what changes now and then), log (name, level, text), what was counted (see `Telling`), and each second a
pulse (silent, longest: see `Engine.silence`). `listeners` hands them out. Nothing of a server is imported here: loading
begins before.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from localspec.checks import inside
from localspec.errors import told
from localspec.runtime.engine import Engine
from localspec.runtime.facts import ModelFacts
from localspec.runtime.pool import Pool
from localspec.runtime.signs import Signs

Hear: TypeAlias = Callable[[str, str], object]
"""Takes an event's name and its line."""


class Life:
    """Of the process."""

    def __init__(self, pool: Pool) -> None:
        """`pool`: its default is loaded and stays until it is closed; done by `close`."""
        self.pool = pool
        self.engine: Engine | None = None
        """None until it is ready."""
        self.ending = False
        """The server is to end."""
        self._lock = threading.Lock()  # of what is said
        self._hear: Hear | None = None
        self._early: list[tuple[str, str]] = []
        """Said before anybody heard."""
        self._signs = Signs()
        self._state: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._load, name="localspec-load", daemon=True)

    def load(self) -> None:
        """Begins to load."""
        logger = logging.getLogger("localspec")
        logger.addHandler(_Handler(self))
        logger.propagate = False
        self._thread.start()

    def close(self) -> None:
        """Closes the pool, which ends all answers. On a thread: it takes a pass, or until loading gives up."""
        self.pool.close()
        self._thread.join()

    def say(self, event: str, **facts: Any) -> None:
        """Tells the listeners. Any thread may call it."""
        line = json.dumps({"event": event} | facts) + "\n"
        with self._lock:
            if self._hear is None:
                self._early.append((event, line))
            else:
                self._hear(event, line)

    def say_state(self) -> None:
        """Tells what may change, of models that are loaded."""
        if self.engine is not None:
            self.say("state", **state_of(self.engine))

    def begin(self, hear: Hear) -> None:
        """All that was said and will be is heard, on any thread."""
        with self._lock:
            self._hear = hear
            for event, line in self._early:
                hear(event, line)
            self._early.clear()

    def pulse(self) -> None:
        """Says a sign of life, and what has changed."""
        silent, longest = self._signs.silent, self._signs.longest
        if isinstance(self.engine, Engine):
            silent, longest = self.engine.silence
            if (now := state_of(self.engine)) != self._state:
                self._state = now
                self.say("state", **now)
        self.say("pulse", silent=silent, longest=longest)

    def _load(self) -> None:
        def report(what: str, share: float) -> None:
            self._signs.alive()
            self.say("loading", what=what, share=share)

        try:
            engine = self.pool.lease(self.pool.default, report).engine  # never given back
            facts = facts_of(engine).json()
        except Exception as error:  # noqa: BLE001 - the worker's edge: who listens raises it
            self.say("failed", **told(error))
            return  # who listens hears of it, and goes
        self.engine = engine
        self.say_state()
        self.say("ready", **facts)


class _Handler(logging.Handler):
    """Tells the lines of the log."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def emit(self, record: logging.LogRecord) -> None:
        self._life.say("log", name=record.name, level=record.levelno, text=record.getMessage())


def facts_of(engine: Engine) -> ModelFacts:
    """What does not change."""
    return replace(engine.facts, layers=inside.layers(engine))


def state_of(engine: Engine) -> dict[str, Any]:
    """What may change."""
    return {"drafters": list(engine.drafters), "dropped": engine.dropped, "outdated": engine.outdated}
