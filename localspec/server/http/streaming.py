"""How answers leave: as server-sent events in OpenAI's order, or whole; and what happens when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.server.http.errors import LOG, ApiError, client_gone, error_body, internal

PING = ":\n\n"
"""A comment: keeps a silent stream alive."""
DONE = "data: [DONE]\n\n"
_Result = TypeVar("_Result")
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the latter: nginx, do not collect


class Closing(Protocol):
    """Is closed with its response."""

    def close(self) -> None: ...


class EventStream(StreamingResponse):
    """Server-sent events of a request's answers, which are closed with it: read to the end, cut off, or never begun."""

    def __init__(self, answers: Closing, lines: AsyncIterator[str], media_type: str = "text/event-stream") -> None:
        super().__init__(lines, media_type=media_type, headers=_HEADERS)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def openai_lines(
    chunks: AsyncIterator[Mapping[str, Any] | None], path: str, end: str = DONE
) -> AsyncIterator[str]:
    """Chunks (None = nothing to say yet) as OpenAI streams them, an error as the last but one event, and `end`."""
    try:
        async for chunk in chunks:
            yield PING if chunk is None else f"data: {compact(chunk)}\n\n"
    except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
        yield f"data: {compact(error_body(told(error), path))}\n\n"
    yield end


def compact(body: Mapping[str, Any]) -> str:
    """JSON text; a number that JSON cannot tell is null."""
    return to_json(body, inf_nan_mode="null").decode()


def named_event(event: Mapping[str, Any]) -> str:
    """A server-sent event that carries its type as its name."""
    return f"event: {event['type']}\ndata: {compact(event)}\n\n"


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
