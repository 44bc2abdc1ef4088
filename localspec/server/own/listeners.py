"""Who listens to the life of a process that has one model; the process ends with the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.server.own.life import Life
from localspec.server.own.own import Route

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
