"""uvicorn for one model, in a process of its own."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from anyio import to_thread
from starlette.types import ASGIApp

from localspec.server.own.answer import OwnAnswers
from localspec.server.own.life import Life
from localspec.server.own.own import Own

_END_SECONDS = 20.0
"""After which the process is ended by force: a pass may take long, and caches of chats are written."""
_SWITCH_SECONDS = 0.0002
"""Between threads of Python: the engine's has to wait so long for the one that writes answers. With Python's 0.005
eight users get 6 % fewer tokens a second (SmolLM2, 2 cores)."""


def serve(life: Life, listening: socket.socket, secret: str) -> None:
    """Serves until `life` ends, or a signal comes; then the models are closed."""

    async def make() -> ASGIApp:
        from localspec.server.http.app import create_app  # takes a second
        from localspec.server.http.settings import PREFIX, ServerSettings

        settings = ServerSettings(host=f"{PREFIX}{listening.getsockname()}", drain_seconds=0.0)
        app = await to_thread.run_sync(create_app, life.pool, settings)
        await app.state.service.load(life.pool.default)
        return app

    sys.setswitchinterval(_SWITCH_SECONDS)
    answers = OwnAnswers(lambda: life.pool.lease(life.pool.default))
    _Process(Own(secret, life.routes | answers.routes, make), life).run([listening])


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

    def __init__(self, app: ASGIApp, life: Life) -> None:
        super().__init__(app, lambda: life.ending, self._end_life)
        self._life = life

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._life.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        faulthandler.dump_traceback_later(_END_SECONDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        await super().shutdown(sockets)
        faulthandler.cancel_dump_traceback_later()

    async def _end_life(self) -> None:
        await to_thread.run_sync(self._life.close)
        self._life.over()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's kills the process with the signal once more when all is over."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._life.ending = True
