"""In front of the application: requests that prove with a secret that they come from the program itself.

Everybody else finds the application alone, where there are no such paths and fields.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from anyio import Lock
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.errors import LocalspecError, told
from localspec.runner.place import HEADER

Route: TypeAlias = Callable[[Request], Awaitable[Response]]
Make: TypeAlias = Callable[[], Awaitable[ASGIApp]]


class Own:
    """ASGI: answers what is on `routes` by itself, and hands the rest on."""

    def __init__(
        self, secret: str, routes: Mapping[tuple[str, str], Route], make: Callable[[], Awaitable[ASGIApp]]
    ) -> None:
        """
        Args:
            secret: known by the program alone.
            routes: by method and path.
            make: the application of all others, when the first of them comes: it takes a second.
        """
        self._secret = secret.encode()
        self._routes, self._make = routes, make
        self._app: ASGIApp | None = None
        self._one = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"])) if self._is_own(scope) else None
        if route is None:
            await (await self.made())(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await route(request)
        except LocalspecError as error:
            response = JSONResponse({"error": told(error)}, 400)
        await response(scope, receive, send)

    def _is_own(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get(HEADER, "")
        return hmac.compare_digest(given.encode("latin-1"), self._secret)

    async def made(self) -> ASGIApp:
        async with self._one:
            if self._app is None:
                self._app = await self._make()
            return self._app
