"""Routes whose bodies are read by a strict JSON parser: no lone surrogates, no NaN, no endless nesting."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from anyio import to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from localspec.server.chat.service import Service
from localspec.server.http.errors import ApiError, from_validation, not_json
from localspec.server.http.reading import HEADER, Reading

LARGE_BODY = 256 * 1024
"""Bytes of a body that is parsed on a worker thread: a smaller one takes a few milliseconds."""
MOST_VALUES = 1 << 20
"""Separators in a body: at most so many values are made into Python objects, which takes up to a second."""


class JsonRoute(APIRoute):
    """For every router that needs no model. What is let in here can be sent out again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's, over a request that parses and validates for itself, and with a header for ignored fields."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind = self.body_field.field_info.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)

        async def handled(request: Request) -> Response:
            service: Service = request.app.state.service
            reading = Reading(strict=service.settings.strict_fields)
            response = await handle(_Request(request, kind, reading))
            if reading.ignored:
                response.headers[HEADER] = ", ".join(reading.ignored)
                service.ignored.tell(reading.ignored)
            return response

        return handled


class ModelRoute(JsonRoute):
    """For routes that need a model, which may be in another process."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """`JsonRoute`'s, or the answer of the process that has the model."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            service: Service = request.app.state.service
            return await (handle(request) if service.front is None else service.front.answer(request, handle))

        return handled


def separators(body: bytes) -> int:
    """Commas and opening brackets of a body: as many values as it can have."""
    return sum(body.count(mark) for mark in (b",", b"[", b"{"))


class _Request(Request):
    def __init__(self, request: Request, kind: type[BaseModel], reading: Reading) -> None:
        super().__init__(request.scope, request.receive)
        self._kind, self._reading = kind, reading

    async def json(self) -> Any:
        """The body, validated, which FastAPI takes as it is."""
        body = await self.body()
        if len(body) <= LARGE_BODY:
            return self._read(body)
        service: Service = self.app.state.service
        return await to_thread.run_sync(self._read, body, limiter=service.large_bodies)

    def _read(self, body: bytes) -> BaseModel:
        values = separators(body)
        if values > MOST_VALUES:
            what = f"The body has {values} commas and opening brackets; at most {MOST_VALUES} are read."
            raise ApiError(413, "invalid_request_error", what)
        try:
            data = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise not_json("The body", error) from None
        try:
            return self._kind.model_validate(data, context=self._reading)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            raise from_validation([one | {"loc": ("body", *one["loc"])} for one in problems]) from None
