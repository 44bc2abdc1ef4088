"""Hands requests on to the processes that have the models, and what these answer to the clients, as it is.

A process may die at any time. A client that waits for its answer then gets an error in the form of its API.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx2 as httpx
from anyio import to_thread
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from localspec.errors import LocalspecError
from localspec.llama.exact.choice import Progress
from localspec.runner.child import Child, HostUse, Load
from localspec.runtime.pool import Files, Lease, Pool
from localspec.server.chat.service import Handle, Service, UnderWay
from localspec.server.http.meter import Metrics
from localspec.server.http.output import DONE, EVENTS, NDJSON, error_body, from_localspec, whole
from localspec.server.http.reading import LARGE_BODY, MOST_VALUES, separators
from localspec.server.http.settings import ServerSettings
from localspec.server.ollama.models import KeptAlive, free, named

_HOST = "http://localspec"
_TOLD_SECONDS = 2.0
"""Of silence, for what a process tells at once. A choice."""
_HOP = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server"))
"""Headers of the connection to the process, which are not the client's."""


class Processes:
    """Models in processes of their own, of one server: `make` is for its `Pool`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._public = replace(
            settings, behind=True, host="127.0.0.1", ssl_cert=None, ssl_key=None, api_keys=(), cors_origins=()
        )
        self.meter: Metrics | None = None
        """Where is counted; None = nothing is answered yet."""
        self._begun: tuple[Load, Child] | None = None

    def begin(self, pool: Pool) -> None:
        """Starts the process of the default model, for which `make` is about to be asked."""
        files = pool.files(pool.default)
        load = self._load(pool.default, files, pool.settings_of(files))
        self._begun = load, self._child(load)

    def give_up(self) -> None:
        """Ends what was begun and never asked for."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[1].close(at_once=True)

    def make(self, name: str, files: Files, settings: dict[str, Any], progress: Progress) -> Child:
        """A process that has a model, once it answers."""
        load = self._load(name, files, settings)
        if self._begun is not None and self._begun[0] == load:
            child, self._begun = self._begun[1], None
        else:
            child = self._child(load)
        child.wait(progress)
        return child

    def _load(self, name: str, files: Files, settings: dict[str, Any]) -> Load:
        return Load(files.target, files.draft, files.heads, settings, called=name, public=self._public)

    def _child(self, load: Load) -> Child:
        def hear(event: str, news: dict[str, Any]) -> None:
            if self.meter is not None:
                self.meter.hear(str(load.called), event, news)

        return Child(load, hear=hear)


class _Named(BaseModel):
    """What the choice of a model needs of any body. The rest, which may be long, stays JSON."""

    model: str | None = None


class _OllamaNamed(_Named):
    """The same, and what decides whether the model is loaded or freed."""

    keep_alive: Any = None
    messages: Any = None
    prompt: Any = None
    suffix: Any = None
    input: Any = None


_Kind = TypeVar("_Kind", bound=_Named)


def _is_ollama(path: str) -> bool:
    """Whether a path is one of Ollama's API; those below /api/v0 are LM Studio's."""
    return path.startswith("/api/") and not path.startswith("/api/v0/")


class Front(Service):
    """The service of a server whose models are in processes of their own."""

    def __init__(self, pool: Pool, settings: ServerSettings) -> None:
        super().__init__(pool, settings)
        self._clients: dict[Path, httpx.AsyncClient] = {}
        self._tasks = set[asyncio.Task[Any]]()

    async def served(self, request: Request, handle: Handle) -> Response:
        """What the process of the model answers, which is loaded if need be; `handle` answers what needs no model."""
        body, path = await request.body(), request.url.path
        if not _is_ollama(path):
            return await self._of_any(request, body, (await self._asked(_Named, body)).model)
        asked = await self._asked(_OllamaNamed, body)
        name = await named(self, asked.model)
        try:
            frees = KeptAlive(keep_alive=asked.keep_alive).frees  # its memory is not needed after this request
        except ValidationError:
            frees = False
        if frees and not (asked.messages or asked.prompt or asked.suffix or asked.input):  # nothing is loaded for this

            async def again() -> Message:
                return {"type": "http.request", "body": body}

            return await handle(Request(request.scope, again))
        response = await self._sent(request, body, await self.lease(name))
        if frees:
            response.after = lambda: free(self, name)
        return response

    async def passed_on(self, request: Request, lease: Lease) -> Response:
        """The same for a request without a body, of a model in memory. Takes the lease over."""
        return await self._sent(request, b"", lease)

    async def under_way(self, name: str) -> UnderWay:
        """What a process answers now; nothing if it is gone."""
        reply = await self._asked_of(name, "GET", "running")
        told: dict[str, Any] = {"count": 0, "reading": {}} if reply is None else reply.json()
        return UnderWay(told["count"], {int(number): read for number, read in told["reading"].items()})

    def stop(self) -> None:
        """Also has all processes end their answers, each with an error for its client."""
        super().stop()
        for name in self.pool.loaded():
            task = asyncio.get_running_loop().create_task(self._asked_of(name, "POST", "stop"))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _asked_of(self, name: str, method: str, path: str) -> httpx.Response | None:
        """What a process answers to the server itself; None = it is gone."""
        lease = self.pool.lease_loaded(name)
        if lease is None:
            return None
        with suppress(LocalspecError, httpx.HTTPError), ExitStack() as using:
            using.callback(lease.release)
            use = await self._used(lease, using)
            client, url = await self._client(use), f"{_HOST}/localspec/{path}"
            return await client.request(method, url, headers=use.headers, timeout=_TOLD_SECONDS)
        return None

    async def _asked(self, kind: type[_Kind], body: bytes) -> _Kind:
        """What a body asks for; the process tells what is wrong with it."""
        try:
            if separators(body) > MOST_VALUES:
                return kind()
            if len(body) <= LARGE_BODY:
                return kind.model_validate_json(body)
            return await to_thread.run_sync(kind.model_validate_json, body, limiter=self.large_bodies)
        except ValidationError:
            return kind()

    async def _of_any(self, request: Request, body: bytes, name: str | None) -> Response:
        """An answer of the model that is named; what names none, such as an earlier answer, may be any's."""
        response = await self._sent(request, body, await self.lease(name))
        if request.method == "POST":
            return response
        for other in self.pool.loaded():
            if response.status_code != 404:
                break
            lease = self.pool.lease_loaded(other)
            if lease is not None:
                await response.close()
                response = await self._sent(request, body, lease)
        return response

    async def _sent(self, request: Request, body: bytes, lease: Lease) -> _PassedOn:
        """Sends a request to a process, and waits for the head of its answer. Takes the lease over."""
        with ExitStack() as using:
            using.callback(lease.release)
            use = await self._used(lease, using)
            client = await self._client(use)
            asked = client.build_request(
                request.method,
                f"{_HOST}{request.url.path}",
                params=request.url.query or None,
                content=body,
                headers={"Content-Type": request.headers.get("content-type", "application/json")},
            )
            try:
                reply = await whole(request, ExitStack(), partial(client.send, asked, stream=True))
            except httpx.HTTPError:
                fate = await to_thread.run_sync(use.fate)
                self.meter.lost(lease.name)
                raise fate from None
            lost = partial(self.meter.lost, lease.name)
            return _PassedOn(reply, use, using.pop_all(), request.url.path, lost)
        raise AssertionError  # the stack swallows nothing

    async def _used(self, lease: Lease, using: ExitStack) -> HostUse:
        assert isinstance(lease.model, Child)
        if lease.model.listens:
            return using.enter_context(lease.model.use())
        return await to_thread.run_sync(using.enter_context, lease.model.use())

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def _client(self, use: HostUse) -> httpx.AsyncClient:
        """Connections to a process; those to processes that are gone are let go."""
        assert use.at is not None
        if use.at not in self._clients:
            for at in [at for at in self._clients if not at.exists()]:
                await self._clients.pop(at).aclose()
            transport = httpx.AsyncHTTPTransport(uds=str(use.at), limits=httpx.Limits(), verify=False)
            self._clients[use.at] = httpx.AsyncClient(transport=transport, timeout=None, trust_env=False)
        return self._clients[use.at]


class _PassedOn(StreamingResponse):
    """What a process answers, piece by piece."""

    def __init__(
        self, reply: httpx.Response, use: HostUse, using: ExitStack, path: str, lost: Callable[[], object]
    ) -> None:
        """`using` is left when the client has read the answer or has left; `lost` is called if the process dies."""
        super().__init__(self._pieces(), reply.status_code)
        self.raw_headers = [(name, value) for name, value in reply.headers.raw if name.lower() not in _HOP]
        self._reply, self._use, self._using, self._path, self._lost = reply, use, using, path, lost
        self._failure: BaseException | None = None
        self.after: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.close()

    async def close(self) -> None:
        """Lets go of the process; it hears of that."""
        failure = self._failure
        self._using.__exit__(None if failure is None else type(failure), failure, None)
        await self._reply.aclose()
        if self.after is not None:
            await self.after()

    async def _pieces(self) -> AsyncIterator[bytes]:
        end, kind = b"\n\n", self._reply.headers.get("content-type", "").partition(";")[0]
        try:
            async for piece in self._reply.aiter_raw():
                self._use.doing = "answered"
                end = piece[-2:]
                yield piece
        except httpx.HTTPError as error:
            self._failure, fate = error, await to_thread.run_sync(self._use.fate)
            self._lost()
            if kind not in (EVENTS, NDJSON):
                raise fate from None  # half an answer is out: only closing the connection tells the client
            yield error_event(fate, self._path, end).encode()


def error_event(fate: LocalspecError, path: str, end: bytes) -> str:
    """An error as the last event of a stream that ended with some bytes so far, in the form of its path's API."""
    error = from_localspec(fate)
    body = error_body(error, path)
    plain = path.removeprefix("/v1")
    if _is_ollama(path):
        return ("" if end.endswith(b"\n") else "\n") + json.dumps(body) + "\n"
    begin = "" if end == b"\n\n" else "\n\n"
    if plain.startswith("/messages"):
        return f"{begin}event: error\ndata: {json.dumps(body)}\n\n"
    if plain.startswith("/responses"):
        told = {"type": "error", "code": error.code, "message": error.message, "param": None, "sequence_number": 0}
        return f"{begin}event: error\ndata: {json.dumps(told)}\n\n"
    return f"{begin}data: {json.dumps(body)}\n\n{DONE}"
