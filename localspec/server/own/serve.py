"""uvicorn for one model: in a process of its own, with a life that is told, or on a thread of this one (`Here`)."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from localspec.errors import Cancelled, LocalspecError
from localspec.llama.exact.choice import Progress
from localspec.runner.child import HostUse
from localspec.runner.own_socket import HEADER, OwnSocket
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.pool import Lease
from localspec.server.http.streaming import EventStream
from localspec.server.own.answer import Own, OwnAnswers, Route
from localspec.server.own.life import Life, facts_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from localspec.runtime.engine import Engine
    from localspec.server.chat.service import Service
    from localspec.server.http.settings import ServerSettings

PULSE_SECONDS = 1.0
_LONELY_SECONDS = 60.0
"""For the first listener to come. On Linux the system ends a process whose parent is gone before that."""
_END_SECONDS = 20.0
"""After which the process is ended by force: a pass may take long, and caches of chats are written."""
_KEEP_ALIVE = 86_400
"""Seconds that a connection without a request is kept: the program in front closes it."""
_SWITCH_SECONDS = 0.0002
"""Between threads of Python: the engine's has to wait so long for the one that writes answers. With Python's 0.005
eight users get 6 % fewer tokens a second (SmolLM2, 2 cores)."""
_SOCKET_FILES = hasattr(socket, "AF_UNIX")
"""The system has them; Windows has a port of this machine, where the secret keeps strangers out."""


def serve(life: Life, listening: socket.socket, secret: str, public: ServerSettings | None = None) -> None:
    """Serves until `life` ends, or a signal comes; then the models are closed. `public`: of the server that is in front
    of it; None = there is none.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    _ModelServer(life, secret, public).run([listening])


class _Server(uvicorn.Server):
    """Ends when it is told to, also before it has begun: the answers first, then the connections."""

    def __init__(self, app: ASGIApp, ending: Callable[[], bool], end: Callable[[], Awaitable[None]]) -> None:
        """`ending`: it is to end; `end` ends the answers."""
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


class _ModelServer(_Server):
    """Tells its life, and serves the application to a server in front of it. Ends with its life, with a signal, and if
    need be by force.
    """

    def __init__(self, life: Life, secret: str, public: ServerSettings | None) -> None:
        self._life, self._public = life, public
        self._service: Service | None = None
        self._made = asyncio.Event()
        routes: dict[tuple[str, str], Route] = {
            ("GET", "/localspec/life"): self._listen,
            ("POST", "/localspec/end"): self._stop_all,
            ("GET", "/localspec/running"): self._running,
            ("POST", "/localspec/stop"): self._stop_answers,
        }
        answers = OwnAnswers(lambda: life.pool.lease(life.pool.default))
        self._own = Own(secret, routes | answers.routes, self._make)
        super().__init__(self._own, lambda: life.ending, self._end_life)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._beats = asyncio.create_task(self._beat())
        asyncio.get_running_loop().call_later(_LONELY_SECONDS, self._life.check_alone)
        if self._public is not None:  # while the models are loaded
            self._making = asyncio.create_task(self._own.made())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        faulthandler.dump_traceback_later(_END_SECONDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        await super().shutdown(sockets)
        faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's kills the process with the signal once more when all is over."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._life.ending = True

    async def _end_life(self) -> None:
        await to_thread.run_sync(self._life.close)
        self._beats.cancel()
        self._life.end()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            self._life.pulse()

    async def _make(self) -> ASGIApp:
        """The application for the clients of the server in front."""

        def make() -> FastAPI:
            from localspec.server.http.app import create_app  # takes a second: events of the life go out meanwhile
            from localspec.server.http.errors import LOG
            from localspec.server.http.meter import Telling
            from localspec.server.http.settings import ServerSettings

            LOG.setLevel(logging.INFO)  # the program in front chooses
            settings = self._public or ServerSettings(behind=True)
            return create_app(self._life.pool, settings, counting=Telling(self._life.say, self._life.say_state))

        app = await to_thread.run_sync(make)
        self._service = app.state.service
        self._made.set()
        return app

    async def _listen(self, request: Request) -> Response:
        """All that is told of the life, until the listener goes or the process ends."""
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def hear(line: str | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lines.put_nowait, line)

        async def heard() -> AsyncIterator[str]:
            while (line := await lines.get()) is not None:
                yield line

        self._life.join(hear)
        leaving = ExitStack()
        leaving.callback(self._life.leave, hear)
        return EventStream(leaving, heard(), "application/x-ndjson")

    async def _stop_all(self, request: Request) -> Response:
        self._life.ending = True
        return Response(status_code=202)

    async def _running(self, request: Request) -> Response:
        """What is answered now: `UnderWay`."""
        await self._made.wait()
        assert self._service is not None
        return JSONResponse(asdict(await self._service.under_way(self._life.pool.default)))

    async def _stop_answers(self, request: Request) -> Response:
        """Nothing more is answered, and what runs ends with an error."""
        if self._service is not None:
            self._service.stop()
        return Response(status_code=202)


class Here:
    """A `Host`: an engine of this process. Loads when it is waited for, on that thread; closed meanwhile, it gives up
    at the next progress.
    """

    last_log: tuple[str, ...] = ()

    def __init__(self, load: Callable[[Progress], Engine], closes: bool = True) -> None:
        """`load`: gives the engine; `closes`: closes it in the end."""
        self._load, self._closes = load, closes
        self._turn = threading.Lock()
        """Guards what is below."""
        self._closed = False
        self.engine: Engine | None = None
        self._use: Callable[[], HostUse] | None = None
        self._thread: threading.Thread | None = None
        self.facts: ModelFacts | None = None

    @property
    def outdated(self) -> str:
        return "" if self.engine is None else self.engine.outdated

    def wait(self, progress: Progress | None = None) -> None:
        def report(what: str, share: float) -> None:
            self._check_open()
            if progress is not None:
                progress(what, share)

        self._check_open()
        engine = self._load(report)
        try:
            facts = facts_of(engine)
            with self._turn:
                self._check_open()
                self._serve(engine)
                self.facts = facts
        except BaseException:
            if self._closes:
                engine.close()
            raise

    @contextmanager
    def use(self) -> Iterator[HostUse]:
        if self._closed:
            raise _closed()
        if self._use is None:
            raise LocalspecError("The models are not loaded yet.")
        yield self._use()

    def close(self, at_once: bool = False) -> None:
        with self._turn:
            self._closed = True
        if self._thread is not None:
            self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("Closed while loading.")

    def _serve(self, engine: Engine) -> None:
        answers, secret = OwnAnswers(lambda: Lease(None, "", engine)), secrets.token_urlsafe()
        headers = {HEADER: secret}

        async def end() -> None:
            answers.end()
            if self._closes:
                await to_thread.run_sync(engine.close)

        async def make() -> ASGIApp:  # there is nothing for other clients here
            return Response(status_code=404)

        server = _Server(Own(secret, answers.routes, make), lambda: self._closed, end)
        if _SOCKET_FILES:
            own = OwnSocket()
            listening, leave = own.socket, own.close
            self._use = lambda: HostUse(own.path, headers, _closed)
        else:
            listening = socket.create_server(("127.0.0.1", 0))
            leave, url = listening.close, f"http://127.0.0.1:{listening.getsockname()[1]}"
            self._use = lambda: HostUse(None, headers, _closed, url)

        def run() -> None:
            try:
                server.run([listening])
            finally:
                leave()

        self.engine = engine
        self._thread = threading.Thread(target=run, name="localspec-serve", daemon=True)
        self._thread.start()


def _closed() -> LocalspecError:
    return LocalspecError("The engine is closed.")
