"""The life of a process that has one model: it loads, and tells of it.

What is told are lines of JSON, each with its `event`: loading (what, share), ready (facts of the models) or failed (an
error), state (what changes now and then), log (name, level, text), what was counted (see `Telling`), and each second a
pulse (silent, longest: see `Engine.silence`). `listeners` hands them out. Nothing of a server is imported here: loading
begins before.

Who listens to the life of a process that has one model; the process ends with the last of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.checks import inside
from localspec.errors import told
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Signs
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.pool import Pool
from localspec.server.own.answer import Route

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


PULSE_SECONDS = 1.0
"""Between two signs of life."""
_LONELY_SECONDS = 60.0
"""For the first listener to come. On Linux the system ends a process whose parent is gone before."""
_KEPT = ("loading", "ready", "failed", "state")
"""Events whose last line each new listener gets."""


class Listeners:
    """Of a life. All but `routes` belongs to the event loop."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.routes: dict[tuple[str, str], Route] = {
            ("GET", "/localspec/life"): self._listen,
            ("POST", "/localspec/end"): self._ended,
        }
        self._all: set[asyncio.Queue[str | None]] = set()
        self._kept: dict[str, str] = {}
        self._early: list[str] = []
        """Log lines from before the first listener."""

    def begin(self) -> None:
        """The event loop runs."""
        loop = asyncio.get_running_loop()

        def hear(event: str, line: str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._hand_out, event, line)

        self._life.begin(hear)
        self._beats = asyncio.create_task(self._beat())
        loop.call_later(_LONELY_SECONDS, self._check_alone)

    def over(self) -> None:
        """Nothing more is told."""
        self._beats.cancel()
        for lines in self._all:
            lines.put_nowait(None)

    def join(self) -> asyncio.Queue[str | None]:
        """One more listener: the lines for it."""
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        for line in (*self._early, *self._kept.values()):
            lines.put_nowait(line)
        self._early.clear()
        self._all.add(lines)
        return lines

    def leave(self, lines: asyncio.Queue[str | None]) -> None:
        """A listener is gone; the process ends with the last one."""
        self._all.discard(lines)
        self._check_alone()

    def _hand_out(self, event: str, line: str) -> None:
        if event in _KEPT:
            self._kept[event] = line
        elif event == "log" and not self._all:
            self._early.append(line)
        for lines in self._all:
            lines.put_nowait(line)

    def _check_alone(self) -> None:
        if not self._all:
            self._life.ending = True

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            self._life.pulse()

    async def _listen(self, request: Request) -> Response:
        return _Lines(self)

    async def _ended(self, request: Request) -> Response:
        self._life.ending = True
        return Response(status_code=202)


class _Lines(StreamingResponse):
    """All that is told, until the listener goes or the process ends."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        super().__init__(self._told(), media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._lines = self._listeners.join()
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listeners.leave(self._lines)

    async def _told(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line
