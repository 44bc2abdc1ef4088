"""How answers leave: as a stream in the form of their API, or whole; and what happens when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.server.http.errors import LOG, ApiError, client_gone, error_body, internal

PING = ":\n\n"
"""A comment: keeps a silent stream alive."""
DONE = "data: [DONE]\n\n"
EVENTS, NDJSON = "text/event-stream", "application/x-ndjson"
_Result = TypeVar("_Result")
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the latter: nginx, do not collect


class Closing(Protocol):
    """Is closed with its response."""

    def close(self) -> None: ...


class EventStream(StreamingResponse):
    """Server-sent events of a request's answers, which are closed with it: read to the end, cut off, or never begun."""

    def __init__(self, answers: Closing, lines: AsyncIterator[str], media_type: str = EVENTS) -> None:
        super().__init__(lines, media_type=media_type, headers=_HEADERS)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


class Dialect(NamedTuple):
    """How an API streams: the text before and after each object, its end, and its media type."""

    begin: str = "data: "
    after: str = "\n\n"
    end: str = ""
    media_type: str = EVENTS

    async def lines(self, chunks: AsyncIterator[Mapping[str, Any] | None], path: str) -> AsyncIterator[str]:
        """Chunks (None = nothing to say yet) as text, an error as the last of them, and the end."""
        try:
            async for chunk in chunks:
                yield PING if chunk is None else self._text(chunk)
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            yield self._text(error_body(told(error), path))
        yield self.end

    def _text(self, chunk: Mapping[str, Any]) -> str:
        return self.begin.format_map(chunk) + compact(chunk) + self.after


OPENAI = Dialect(end=DONE)
NAMED = Dialect("event: {type}\ndata: ")
LLAMA_SERVER = Dialect()
LINES = Dialect("", "\n", media_type=NDJSON)


class Reply(Protocol):
    """The answers of a request in the shape of its API; `chunks`: None whenever `silence` seconds brought nothing."""

    def chunks(self, silence: float) -> AsyncIterator[Mapping[str, Any] | None]: ...

    async def collected(self) -> Any: ...


async def respond(request: Request, answers: Closing, reply: Reply, stream: bool | None, dialect: Dialect) -> Response:
    """Answers as they come, or as one object when all are there."""
    if stream:
        chunks = reply.chunks(request.app.state.service.settings.ping_seconds)
        return EventStream(answers, dialect.lines(chunks, request.url.path), dialect.media_type)
    return json_response(await whole(request, answers, reply.collected))


def compact(body: Mapping[str, Any]) -> str:
    """JSON text; a number that JSON cannot tell is null."""
    return to_json(body, inf_nan_mode="null").decode()


def told(error: Exception) -> ApiError:
    """An error as the client may read it; an unforeseen one is logged, and told without its details."""
    if isinstance(error, ApiError):
        return error
    LOG.error("internal error: %r", error)
    return internal(error)


async def whole(request: Request, answers: Closing, collect: Callable[[], Awaitable[_Result]]) -> _Result:
    """What `collect` makes of the answers; they are cancelled if the client goes away meanwhile."""
    collecting = asyncio.ensure_future(collect())
    async with leaving(request) as left:
        try:
            await asyncio.wait((collecting, left), return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise client_gone()
            return collecting.result()
        finally:
            answers.close()
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)


@asynccontextmanager
async def leaving(request: Request) -> AsyncIterator[asyncio.Future[None]]:
    """Is done when the client has left."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":  # the body was read before
            pass

    left = asyncio.ensure_future(gone())
    try:
        yield left
    finally:
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)


def json_response(body: Any) -> Response:
    return Response(to_json(body, inf_nan_mode="null"), media_type="application/json")
