"""Models as Ollama's clients name them, and errors as they read them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from anyio import to_thread
from pydantic import BaseModel

from localspec.server.chat.service import Service
from localspec.server.http.errors import BODIES, ApiError

_LATEST = ":latest"
"""What Ollama's clients put after a name that has no tag."""


NDJSON = "application/x-ndjson"
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {"schema": {"type": "string"}}}}}
"""For the OpenAPI document: a path answers with objects, one a line, unless `stream` is false."""


class OllamaError(BaseModel):
    """An error."""

    error: str


REFUSED: dict[int | str, dict[str, Any]] = {"4XX": {"model": OllamaError}, "5XX": {"model": OllamaError}}
"""For the OpenAPI document: what all routes of this API say when they cannot do what is asked."""


def error_body(error: ApiError) -> dict[str, Any]:
    """Ollama's error body."""
    return {"error": error.message}


BODIES["/api/"] = error_body


def spellings(service: Service, name: str | None) -> tuple[str, ...]:
    """What a name may mean here."""
    wanted = service.resolve(name)
    return wanted, service.resolve(wanted.removesuffix(_LATEST))


async def named(service: Service, name: str | None) -> str:
    """What a model is called here; none given is the default.

    Raises:
        ApiError: 404, there is no such model.
    """
    wanted = service.resolve(name)
    if wanted == service.pool.default or wanted in service.pool.loaded():
        return wanted
    names = await to_thread.run_sync(service.pool.names)
    for one in spellings(service, name):
        if one in names:
            return one
    if service.settings.any_model:
        return service.pool.default
    what = f"model '{wanted[:80]}' not found. There are: {', '.join(sorted(names))}."
    raise ApiError(404, "not_found_error", what, param="model", code="model_not_found")


async def free(service: Service, name: str) -> None:
    """Frees a model's memory, unless somebody uses it."""
    with suppress(KeyError):  # it is not in memory
        await to_thread.run_sync(service.pool.unload, name)


def stamp(seconds: float) -> str:
    """Seconds since 1970 as the API writes times."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
