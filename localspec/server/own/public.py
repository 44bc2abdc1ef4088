"""The application for the clients of a server that is in front of this process, and what that server counts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from localspec.engine.slot import FinishReason
from localspec.remote.steps import figures_out
from localspec.runtime.generation import Generation
from localspec.server.own.answer import Route
from localspec.server.own.life import Life

if TYPE_CHECKING:
    from localspec.server.chat.service import Service
    from localspec.server.http.settings import ServerSettings


class Telling:
    """A `Counting` for the server in front: events of the life stream."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def answered(self, model: str, number: int, generation: Generation) -> None:
        """answered: number, finish, read, figures, gaps."""
        stats, finish = generation.stats, generation.finish or FinishReason.ERROR
        more = {"read": generation.read, "figures": figures_out(stats), "gaps": stats.gaps}
        if finish is FinishReason.ERROR:
            self._life.say_state()  # before who asked hears of the error
        self._life.say("answered", number=number, finish=finish.value, **more)

    def read(self, model: str, tokens: int, seconds: float) -> None:
        """read: tokens, seconds."""
        self._life.say("read", tokens=tokens, seconds=seconds)

    def refused(self) -> None:
        """refused."""
        self._life.say("refused")


class Public:
    """The application, made while the models are loaded. `routes` are for `Own`."""

    def __init__(self, life: Life, settings: ServerSettings | None) -> None:
        """`settings`: None = those of a server in front of it that has none of its own."""
        self._life, self._settings = life, settings
        self._service: Service | None = None
        self._made = asyncio.Event()
        self.routes: dict[tuple[str, str], Route] = {
            ("GET", "/localspec/running"): self._running,
            ("POST", "/localspec/stop"): self._stopped,
        }

    async def make(self) -> ASGIApp:
        """The application."""
        from localspec.server.http.app import create_app  # takes a second
        from localspec.server.http.meter import LOG
        from localspec.server.http.settings import ServerSettings

        LOG.setLevel(logging.INFO)  # the program in front chooses
        settings, counting = self._settings or ServerSettings(behind=True), Telling(self._life)
        app = await to_thread.run_sync(lambda: create_app(self._life.pool, settings, counting=counting))
        self._service = app.state.service
        self._made.set()
        return app

    async def _running(self, request: Request) -> Response:
        """What is answered now: `UnderWay`."""
        await self._made.wait()
        assert self._service is not None
        return JSONResponse(asdict(await self._service.under_way(self._life.pool.default)))

    async def _stopped(self, request: Request) -> Response:
        """Nothing more is answered, and what runs ends with an error."""
        if self._service is not None:
            self._service.stop()
        return Response(status_code=202)
