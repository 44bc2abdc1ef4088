"""The application: routes, middleware and error shapes put together. Knows no socket; `listen` serves it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Container, Coroutine
from typing import Any

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec import __version__
from localspec.errors import LocalspecError
from localspec.runtime.pool import Pool
from localspec.server import messages
from localspec.server.chat import chat, completions
from localspec.server.chat.service import Service
from localspec.server.extras import embeddings, models, native
from localspec.server.front import Front, Processes
from localspec.server.http import monitoring
from localspec.server.http.errors import ApiError, error_response, from_localspec, from_validation
from localspec.server.http.guard import Guard
from localspec.server.http.meter import AccessLog, Telling
from localspec.server.http.reading import HEADER
from localspec.server.http.settings import LOCAL, LOCAL_ORIGIN, ServerSettings
from localspec.server.http.streaming import told
from localspec.server.ollama import answers as ollama_answers
from localspec.server.ollama import models as ollama_models
from localspec.server.ollama import page
from localspec.server.ollama import pull as ollama_pull
from localspec.server.responses import responses
from localspec.server.responses.responses import ResponseMemory

OPENAI_ROUTERS = (
    chat.ROUTER,
    completions.ROUTER,
    responses.ROUTER,
    messages.ROUTER,
    embeddings.ROUTER,
    models.ROUTER,
)
"""Served below /v1, and without it for clients whose base address lacks it."""
OWN_ROUTERS = (
    monitoring.ROUTER,
    native.ROUTER,
    native.WITHOUT,
    models.LM_STUDIO,
    native.TEXT,
    ollama_answers.ROUTER,
    ollama_models.ROUTER,
    ollama_pull.ROUTER,
    page.ROUTER,
)
"""Served as they are."""
LM_STUDIO_ROUTERS = (chat.ROUTER, completions.ROUTER, embeddings.ROUTER)
"""Served below /api/v0, too, where LM Studio has them."""
ELSEWHERE = frozenset(
    {("GET", "/chat/completions"), ("GET", "/responses"), ("POST", "/props"), ("POST", "/lora-adapters")}
)
"""Routes of OpenAI's and llama-server's on paths of ours: clients that look for them are told that they are missing."""
_IDLE_LOOKS = 4
"""How often within `idle_unload` seconds somebody looks for idle engines."""


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


class Heads:
    """ASGI middleware: HEAD is answered wherever GET is, as HTTP asks for; the socket side leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)


def create_app(
    pool: Pool,
    settings: ServerSettings | None = None,
    *,
    on_start: Callable[[Service], Coroutine[Any, Any, None]] | None = None,
    counting: Telling | None = None,
    processes: Processes | None = None,
) -> FastAPI:
    """The ASGI application over a pool of models, which the pool's maker closes.

    Args:
        pool: where models come from.
        settings: None = the defaults.
        on_start: runs in the background once the application has started, such as loading the default model.
        counting: what it counts with; None = a meter of its own.
        processes: that have the pool's models; None = this one has them.
    """
    settings = settings or ServerSettings()
    service = Service(pool, settings, counting)
    if processes is not None:
        service.front = Front(service)
        processes.meter = service.meter

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            if on_start is not None:
                tasks.start_soon(on_start, service)
            if pool.idle_unload is not None:
                tasks.start_soon(_unload_idle, pool, pool.idle_unload)
            yield
            service.stop()
            tasks.cancel_scope.cancel()
        if service.front is not None:
            await service.front.close()

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
    """What requests go through before routes see them."""
    app.add_middleware(Heads)
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
            if error.status_code == 405 and _is_elsewhere(request.method, request.url.path, paths):
                what = f"There is no {request.method} {request.url.path[:80]} here."
                error = ApiError(404, "not_found_error", what)
        return error_response(error, request.url.path)

    @app.exception_handler(LocalspecError)
    async def below(request: Request, error: LocalspecError) -> JSONResponse:
        return error_response(from_localspec(error), request.url.path)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return error_response(told(error), request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(from_validation(error.errors()), request.url.path)


def _is_elsewhere(method: str, path: str, paths: Container[str]) -> bool:
    """Whether a request that goes with none of our methods is for a route that other servers have.

    Args:
        method, path: of the request.
        paths: ours, without /v1; `POST /responses/compact` looks like one of `/responses/{response_id}`, which is none.
    """
    plain = path.removeprefix("/v1")
    return plain not in paths or (method, plain) in ELSEWHERE


async def _unload_idle(pool: Pool, seconds: float) -> None:
    while True:
        await anyio.sleep(max(0.1, seconds / _IDLE_LOOKS))
        await anyio.to_thread.run_sync(pool.unload_idle)
