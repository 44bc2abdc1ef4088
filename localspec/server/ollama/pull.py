"""/api/pull: a model of the hub is installed, with its progress, where the server was told that it may."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, ClassVar

from anyio import move_on_after, to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from localspec.drafters.heads.loading import find, out_of_reach
from localspec.errors import LocalspecError
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Store
from localspec.runtime.memory import places
from localspec.server.chat.fields import Body, Unused
from localspec.server.chat.service import Service, ending
from localspec.server.http.errors import ApiError, from_localspec, invalid
from localspec.server.http.reading import JsonRoute
from localspec.server.http.streaming import leaving, told
from localspec.server.ollama.models import LINES, NDJSON, REFUSED, error_body, spellings

ROUTER = APIRouter(prefix="/api", tags=["ollama"], route_class=JsonRoute, responses=REFUSED)
_SECONDS = 0.25
"""How often the progress of a file is told."""
State = dict[str, Any]


class OllamaPull(Body):
    """POST /api/pull."""

    other_names: ClassVar[dict[str, str]] = {"name": "model"}
    model: str = Field(min_length=1, description="A pair or model of the catalogue, or `user/repo[:quant]`.")
    stream: bool = True
    insecure: Unused = None


class PullProgress(BaseModel):
    """How far it is."""

    status: str  # what is done now; `success` at the end
    digest: str | None = None  # of the file that comes
    total: int | None = None  # bytes of it
    completed: int | None = None  # bytes that are here


@ROUTER.post("/pull", summary="Install a model (Ollama's API)", response_model=PullProgress, responses=LINES)
async def pull(request: Request, body: OllamaPull) -> Response:
    """What `localspec pull` does; a model that is installed is left as it is."""
    service: Service = request.app.state.service
    work = _Pull(service, body.model)
    names = await to_thread.run_sync(service.pool.names)
    if any(one in names for one in spellings(service, body.model)):
        work.done = True
    elif not service.settings.allow_pull:
        what = "This server installs no models. Start it with --allow-pull, or use `localspec pull` on its machine."
        raise ApiError(403, "permission_error", what)
    elif "://" in body.model:
        raise invalid("model is an address; name a model of the catalogue or user/repo[:quant].", "model")
    if body.stream:
        return StreamingResponse(work.lines(), media_type=NDJSON, headers={"Cache-Control": "no-cache"})
    async with leaving(request) as left:
        states = [state async for state in work.states(left)]
    return Response(json.dumps(states[-1]), media_type="application/json")


class _Pull:
    """One pull, on a thread of its own; it is stopped when its client reads no more."""

    def __init__(self, service: Service, name: str) -> None:
        self._service, self._name = service, name
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[State | LocalspecError | Exception | None] = asyncio.Queue()
        self._stop = threading.Event()
        self._told: dict[str, tuple[float, str]] = {}
        self._digests: dict[str, str] = {}
        self.done = False
        """It is installed already."""

    async def lines(self) -> AsyncIterator[str]:
        """Its states, an object a line; an error is the last."""
        try:
            async for state in self.states():
                yield json.dumps(state) + "\n"
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            yield json.dumps(error_body(told(error))) + "\n"

    async def states(self, left: asyncio.Future[None] | None = None) -> AsyncIterator[State]:
        """What is done, as it is done; the last state again after some silence."""
        state: State = {"status": "pulling manifest"}
        yield state
        if not self.done:
            task = asyncio.ensure_future(to_thread.run_sync(self._work, limiter=self._service.pulling))
            try:
                async for news in self._arriving(state, left):
                    yield news
            finally:
                self._stop.set()
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
        yield {"status": "success"}

    async def _arriving(self, state: State, left: asyncio.Future[None] | None) -> AsyncIterator[State]:
        while True:
            item: Any = state
            with move_on_after(self._service.settings.ping_seconds):
                item = await self._news.get()
            if self._service.ending or (left is not None and left.done()):
                raise ending()
            if item is None:
                return
            if isinstance(item, Exception):
                raise from_localspec(item) if isinstance(item, LocalspecError) else item
            state = item
            yield state

    def _work(self) -> None:
        """Worker thread: plans, fetches, checks, lists."""
        from localspec.models.hub.hub import Hub  # a quarter of a second that a start saves
        from localspec.models.hub.pull import check_disk, install, make_plan, wishes

        try:
            hub, store = Hub(), Store()
            wanted = wishes(self._name, hub)
            plan = make_plan(wanted, hub, store, None, places(), catalog=Catalog.load(), reach=out_of_reach)
            check_disk(plan)
            files = [transfer for part in plan.parts for transfer in part.transfers]
            self._digests = {one.label: f"sha256:{one.file.sha256}" for one in files if one.file.sha256}
            install(plan, hub, store, self._report, self._stop, find)
        except Exception as error:  # noqa: BLE001 - the worker's edge: the reader must hear of it
            self._tell(error)
        else:
            self._tell(None)

    def _report(self, file: str, done: int, size: int, what: str) -> None:
        """Any thread: progress of a file."""
        now, (before, was) = monotonic(), self._told.get(file, (0.0, ""))
        if what == was and done < size and now - before < _SECONDS:
            return
        self._told[file] = now, what
        verb = {"loading": "pulling", "checking": "verifying sha256 digest of", "waiting": "waiting for"}[what]
        state: State = {"status": f"{verb} {file}", "total": size, "completed": done}
        if file in self._digests:
            state["digest"] = self._digests[file]
        self._tell(state)

    def _tell(self, item: State | Exception | None) -> None:
        self._loop.call_soon_threadsafe(self._news.put_nowait, item)
