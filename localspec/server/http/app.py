"""The application: who may come in, and with how much, before any route; routes and error shapes put together.

Knows no socket; `listen` serves it.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from time import monotonic
from typing import Any

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec import __version__
from localspec.errors import LocalspecError
from localspec.runtime.pool import Pool
from localspec.server import messages
from localspec.server.chat import chat
from localspec.server.chat.service import Service
from localspec.server.extras import embeddings, models, monitoring, native
from localspec.server.front import Front, Processes
from localspec.server.http.meter import AccessLog, Telling
from localspec.server.http.output import ApiError, error_response, from_localspec, from_validation, invalid, told
from localspec.server.http.reading import HEADER
from localspec.server.http.settings import LOCAL, LOCAL_ORIGIN, PREFIX, ServerSettings, address
from localspec.server.ollama import answers as ollama_answers
from localspec.server.ollama import models as ollama_models
from localspec.server.responses import responses
from localspec.server.responses.responses import ResponseMemory

ENCODINGS = ("gzip", "deflate")
_EITHER = 32 + zlib.MAX_WBITS
"""`wbits` of zlib for data with a header of gzip or of zlib."""
PUBLIC_PATHS = ("/health", "/v1/health")
"""Paths that need no API key: they tell only whether a model is loaded."""
_CLOSE = {"Connection": "close"}


class Guard:
    """ASGI middleware. A refusal is an ordinary error response; nothing of the body has been read by then. HEAD is
    answered wherever GET is, as HTTP asks for; the socket side leaves the body out.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self._settings = settings
        self._keys = [key.encode() for key in settings.api_keys]
        own = socket.gethostname().lower()
        self._own_names = {"localhost", settings.host.lower(), own, f"{own}.local"} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, settings = Headers(scope=scope), self._settings
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size += sum(len(name) + len(value) for name, value in headers.raw)
        try:
            if size > settings.max_header_bytes:
                raise too_long_head(settings.max_header_bytes)
            self._check_host(headers)
            self._check_origin(headers)
            if scope["path"] not in PUBLIC_PATHS:
                self._check_key(headers)
            self._check_body(scope, headers)
            encoding = encoding_of(headers.get("content-encoding", ""))
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, _LimitedBody(receive, settings.max_body_bytes, settings.body_seconds, encoding), send)

    def _check_host(self, headers: Headers) -> None:
        """Against DNS rebinding: a page of a name that was made to point here still says that name. No page reaches a
        socket that is a file."""
        if self._settings.host.startswith(PREFIX):
            return
        allowed = self._settings.allowed_hosts
        name = host_name(headers.get("host", ""))
        if "*" in allowed or name in allowed or name in self._own_names or name.endswith(".localhost"):
            return
        if address(name) is not None:  # no name was looked up, so no name can have been rebound
            return
        what = f"The Host header says {name[:80]!r}, which is no name of this server. "
        what += "Start it with --allow-host NAME if it is one."
        raise ApiError(403, "permission_error", what if name else "The Host header is missing or empty.")

    def _check_origin(self, headers: Headers) -> None:
        """A web page of another origin may send requests without asking; its browser only hides the answer from it."""
        origin = headers.get("origin")
        if origin is None or self._settings.lets_in(origin):
            return
        if origin.partition("://")[2] == headers.get("host"):
            return
        what = f"Pages of {origin[:80]!r} may not use this server. Start it with --cors ORIGIN to let them."
        raise ApiError(403, "permission_error", what)

    def _check_key(self, headers: Headers) -> None:
        if not self._keys:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Every key is compared, each in constant time, so that the time taken tells nothing.
        if sum(hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys):
            return
        what = f"The API key {'is not right' if given else 'is missing'}. Send it as `Authorization: Bearer KEY`."
        headers_out = {"WWW-Authenticate": "Bearer"}
        raise ApiError(401, "authentication_error", what, code="invalid_api_key", headers=headers_out)

    def _check_body(self, scope: Scope, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._settings.max_body_bytes:
            raise too_large(self._settings.max_body_bytes)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = length != "0" or "transfer-encoding" in headers
        is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
        if scope["method"] == "POST" and has_body and not is_json:
            if scope["path"].startswith("/api/") and "origin" not in headers:
                # Ollama reads every body as JSON, and its manual sends bodies with curl, which calls them a form.
                kept = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
                scope["headers"] = [*kept, (b"content-type", b"application/json")]
                return
            said = f"Content-Type is {kind[:80]!r}" if kind else "There is no Content-Type"
            raise ApiError(415, "invalid_request_error", f"{said}; it must be application/json.", headers=_CLOSE)


class _LimitedBody:
    """`receive` that takes compressed bodies apart, and gives up on those that are too large or too slow."""

    def __init__(self, receive: Receive, most: int, seconds: float, encoding: str) -> None:
        """`encoding`: of the body; "" = none."""
        self._receive, self._most, self._seconds = receive, most, seconds
        self._decompression = Decompression(encoding, most) if encoding else None
        self._until = monotonic() + seconds
        self._size = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            with anyio.fail_after(max(0.0, self._until - monotonic())):
                message = await self._receive()
        except TimeoutError:
            what = f"The body did not arrive within {self._seconds:g} seconds."
            raise ApiError(408, "invalid_request_error", what, headers=_CLOSE) from None
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            if self._decompression is not None:
                message["body"] = self._decompression.feed(message.get("body", b""), self._complete)
            self._size += len(message.get("body", b""))
            if self._size > self._most:
                raise too_large(self._most)
        return message


def too_large(most: int) -> ApiError:
    return ApiError(413, "invalid_request_error", f"The body is larger than {most} bytes.", headers=_CLOSE)


def too_long_head(most: int) -> ApiError:
    return ApiError(431, "invalid_request_error", f"The request's head is longer than {most} bytes.", headers=_CLOSE)


def host_name(host: str) -> str:
    """A Host header without its port, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):  # IPv6
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


class Decompression:
    """A body that comes compressed, taken apart as it arrives and never beyond the limit of a body."""

    def __init__(self, encoding: str, most: int) -> None:
        """`encoding`: one of `ENCODINGS`; `most`: bytes that may come out, and one more where there would be more."""
        self._encoding, self._left = encoding, most + 1
        self._begun = b""
        """The first byte, until the second has come: both tell whether deflated data has a header."""
        self._inflate: Any = None

    def feed(self, data: bytes, last: bool) -> bytes:
        """What some bytes of the body bring; `last`: no more come. ApiError 400: it is no such data."""
        data, self._begun = self._begun + data, b""
        if self._inflate is None:
            if not data or (len(data) < 2 and not last):
                self._begun = data
                return b""
            # Many programs leave out zlib's header, which deflated data begins with.
            has_header = len(data) > 1 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
            is_bare = self._encoding == "deflate" and not has_header
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else _EITHER)
        found = bytearray()
        try:
            while data and self._left:
                if self._inflate.eof:  # gzip data may have several parts
                    self._inflate = zlib.decompressobj(_EITHER)
                piece = self._inflate.decompress(data, self._left)
                self._left -= len(piece)
                found += piece
                data = self._inflate.unconsumed_tail or self._inflate.unused_data
        except zlib.error:
            raise invalid(f"The body is not what its Content-Encoding says: no {self._encoding} data.") from None
        if last and self._left and not self._inflate.eof:
            raise invalid(f"The body's {self._encoding} data is cut off.")
        return bytes(found)


def encoding_of(header: str) -> str:
    """The encoding that a header names; "" = the body comes as it is. ApiError 415: one that is not read here."""
    name = header.strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return ""
    if name in ENCODINGS:
        return name
    what = f"Content-Encoding is {header.strip()[:80]!r}; this server reads {' and '.join(ENCODINGS)}, or none."
    headers = {"Accept-Encoding": ", ".join(ENCODINGS), "Connection": "close"}
    raise ApiError(415, "invalid_request_error", what, headers=headers)


OPENAI_ROUTERS = (chat.ROUTER, chat.COMPLETIONS, *(one.ROUTER for one in (responses, messages, embeddings, models)))
"""Served below /v1, and without it for clients whose base address lacks it."""
OWN_ROUTERS = (
    monitoring.ROUTER,
    native.ROUTER,
    native.WITHOUT,
    models.LM_STUDIO,
    native.TEXT,
    ollama_answers.ROUTER,
    ollama_models.ROUTER,
    models.PAGE,
)
"""Served as they are."""
LM_STUDIO_ROUTERS = (chat.ROUTER, chat.COMPLETIONS, embeddings.ROUTER)
"""Served below /api/v0, too, where LM Studio has them."""
ELSEWHERE = frozenset(
    {("GET", "/chat/completions"), ("GET", "/responses"), ("POST", "/props"), ("POST", "/lora-adapters")}
)
"""Routes of OpenAI's and llama-server's on paths of ours: clients that look for them are told that they are missing."""
_IDLE_LOOKS = 4
"""How often within `idle_unload` seconds idle engines are looked for."""


class ErrorFields(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(extra="allow")
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """An error."""

    error: ErrorFields


def create_app(
    pool: Pool,
    settings: ServerSettings | None = None,
    *,
    on_start: Callable[[Service], Coroutine[Any, Any, None]] | None = None,
    counting: Telling | None = None,
    processes: Processes | None = None,
) -> FastAPI:
    """The ASGI application over a pool of models, which the pool's maker closes.

    `on_start` runs in the background once the application has started, such as loading the default model; `counting`
    counts, else a meter of its own does; `processes` have the pool's models, else this one has them.
    """
    settings = settings or ServerSettings()
    service = Service(pool, settings, counting) if processes is None else Front(pool, settings)
    if processes is not None:
        processes.meter = service.meter

    async def unload(seconds: float) -> None:
        while True:
            await anyio.sleep(seconds)
            await anyio.to_thread.run_sync(pool.unload_idle)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            if on_start is not None:
                tasks.start_soon(on_start, service)
            if pool.idle_unload is not None:
                tasks.start_soon(unload, max(0.1, pool.idle_unload / _IDLE_LOOKS))
            yield
            service.stop()
            tasks.cancel_scope.cancel()
        if isinstance(service, Front):
            await service.close()

    app = FastAPI(
        title="localspec",
        version=__version__,
        summary="OpenAI-style endpoint of local models with exact speculative decoding.",
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from the network
        redoc_url=None,
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    app.state.service = service
    app.state.responses = ResponseMemory()
    for router in OPENAI_ROUTERS:
        app.include_router(router, prefix="/v1")
        app.include_router(router, include_in_schema=False)
    for router in OWN_ROUTERS:
        app.include_router(router)
    for router in LM_STUDIO_ROUTERS:
        app.include_router(router, prefix="/api/v0", include_in_schema=False)
    _shape_errors(app)
    if not settings.behind:
        _let_in(app, settings)
    return app


def _let_in(app: FastAPI, settings: ServerSettings) -> None:
    app.add_middleware(Guard, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_origin_regex=LOCAL_ORIGIN if LOCAL in settings.cors_origins else None,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(HEADER,),
        )
    app.add_middleware(AccessLog)


def _shape_errors(app: FastAPI) -> None:
    """Every error leaves in the shape its path's clients know."""
    routes = [route for router in (*OPENAI_ROUTERS, *OWN_ROUTERS) for route in router.routes]
    paths = {route.path.removeprefix("/v1") for route in routes if isinstance(route, APIRoute)}

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, ApiError):
            kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
            what = {
                404: f"There is no path {request.url.path[:80]!r} here.",
                405: f"{request.method} does not go with this path.",
            }.get(error.status_code, f"{error.detail}.")
            error = ApiError(error.status_code, kind, what, headers=error.headers)
            plain = request.url.path.removeprefix("/v1")
            # `POST /responses/compact` looks like one of `/responses/{response_id}`, which is none.
            if error.status_code == 405 and (plain not in paths or (request.method, plain) in ELSEWHERE):
                what = f"There is no {request.method} {request.url.path[:80]} here."
                error = ApiError(404, "not_found_error", what)
        return error_response(error, request.url.path)

    def shaped(kind: type[Exception], as_http: Callable[[Any], ApiError]) -> None:
        async def handled(request: Request, error: Exception) -> JSONResponse:
            return error_response(as_http(error), request.url.path)

        app.add_exception_handler(kind, handled)

    shaped(LocalspecError, from_localspec)
    shaped(Exception, told)
    shaped(RequestValidationError, lambda error: from_validation(error.errors()))
