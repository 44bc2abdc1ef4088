"""uvicorn for one model, in a process of its own."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import uvicorn
from anyio import to_thread
from starlette.types import ASGIApp

from localspec.server.own.answer import Own, OwnAnswers
from localspec.server.own.life import Life, Listeners
from localspec.server.own.public import Public

if TYPE_CHECKING:
    from localspec.server.http.settings import ServerSettings

First: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
_END_SECONDS = 20.0
"""After which the process is ended by force: a pass may take long, and caches of chats are written."""
_KEEP_ALIVE = 86_400
"""Seconds that a connection without a request is kept: who is in front of it closes it."""
_SWITCH_SECONDS = 0.0002
"""Between threads of Python: the engine's has to wait so long for the one that writes answers. With Python's 0.005
eight users get 6 % fewer tokens a second (SmolLM2, 2 cores)."""


def serve(life: Life, listening: socket.socket, secret: str, public: ServerSettings | None = None) -> None:
    """Serves until `life` ends, or a signal comes; then the models are closed.

    Args:
        life: of this process.
        listening: where.
        secret: known by the program that started it alone.
        public: of the server that is in front of it; None = there is none.
    """

    sys.setswitchinterval(_SWITCH_SECONDS)
    others = Public(life, public)
    answers = OwnAnswers(lambda: life.pool.lease(life.pool.default))
    listeners = Listeners(life)
    own = Own(secret, listeners.routes | answers.routes | others.routes, others.make)
    _Process(own, life, listeners, None if public is None else own.made).run([listening])


class Server(uvicorn.Server):
    """Ends when it is told to, also before it has begun: the answers first, then the connections."""

    def __init__(self, app: ASGIApp, ending: Callable[[], bool], end: Callable[[], Awaitable[None]]) -> None:
        """
        Args:
            app: what it serves.
            ending: it is to end.
            end: ends the answers.
        """
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
        self._ending, self._end = ending, end

    async def on_tick(self, counter: int) -> bool:
        return self._ending() or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._end()
        await super().shutdown(sockets)


class _Process(Server):
    """Ends with its life, with a signal, and if need be by force."""

    def __init__(self, app: ASGIApp, life: Life, listeners: Listeners, first: First | None) -> None:
        """`first`: what is done while the models are loaded."""
        super().__init__(app, lambda: life.ending, self._end_life)
        self._life, self._listeners, self._first = life, listeners, first

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listeners.begin()
        if self._first is not None:
            self._making = asyncio.create_task(self._first())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        faulthandler.dump_traceback_later(_END_SECONDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        await super().shutdown(sockets)
        faulthandler.cancel_dump_traceback_later()

    async def _end_life(self) -> None:
        await to_thread.run_sync(self._life.close)
        self._listeners.over()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's kills the process with the signal once more when all is over."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._life.ending = True
