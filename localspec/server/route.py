"""Routes whose bodies are read by a strict JSON parser: no lone surrogates, no NaN, no endless nesting."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json


class JsonRoute(APIRoute):
    """For every router: `APIRouter(route_class=JsonRoute)`. What is let in here can be sent out again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's, over a request that parses for itself."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handled


class _Request(Request):
    async def json(self) -> Any:
        """The body as Python data; FastAPI turns the error into its own."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None
