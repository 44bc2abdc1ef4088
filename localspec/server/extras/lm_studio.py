"""/api/v0/models: LM Studio's list of models, which says what each is and whether it is loaded.

Its routes that answer, such as /api/v0/chat/completions, are those of OpenAI's API.
"""

from __future__ import annotations

from typing import Literal

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel

from localspec.errors import LocalspecError
from localspec.models.installed.store import Store
from localspec.server.chat.service import Service
from localspec.server.http.errors import BODIES, ApiError, unknown_model
from localspec.server.ollama.models import capabilities, describe

ROUTER = APIRouter(prefix="/api/v0", tags=["LM Studio"])
BODIES["/api/v0/"] = ApiError.body


class Facts(BaseModel):
    """What LM Studio's clients ask of a model; null where its file cannot be read."""

    type: Literal["llm"] = "llm"
    publisher: str | None = None
    """Owner of the repository that it came from; "" = it came from none."""
    arch: str | None = None
    compatibility_type: Literal["gguf"] = "gguf"
    quantization: str | None = None
    state: Literal["loaded", "not-loaded"] = "not-loaded"
    max_context_length: int | None = None
    """Tokens it was trained for."""
    loaded_context_length: int | None = None
    """Tokens that a conversation may have, if it is loaded."""
    capabilities: list[Literal["tool_use"]] = []


class Listed(Facts):
    """One model."""

    id: str
    object: Literal["model"] = "model"


class ListedModels(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[Listed]


@ROUTER.get("/models", summary="List the models (LM Studio's API)", response_model_exclude_none=True)
async def list_models(request: Request) -> ListedModels:
    """The default model first, then everything installed that can be read."""
    return ListedModels(data=await to_thread.run_sync(_listed, request.app.state.service))


@ROUTER.get("/models/{name:path}", summary="One model (LM Studio's API)", response_model_exclude_none=True)
async def get_model(request: Request, name: str) -> Listed:
    """A model by its name or alias."""
    service: Service = request.app.state.service
    found = {one.id: one for one in await to_thread.run_sync(_listed, service)}
    model = found.get(service.resolve(name))
    if model is None:
        raise unknown_model(name, sorted(found))
    return model


def _listed(service: Service) -> list[Listed]:
    return [Listed(id=name, **facts.model_dump()) for name, facts in facts_of(service).items()]


def facts_of(service: Service) -> dict[str, Facts]:
    """Of each model whose file can be read, the default first."""
    loaded, found = service.pool.facts(), {}
    owners = {entry.path: entry.origin.partition("/")[0] for entry in Store().entries() if entry.source == "hub"}
    for name in service.pool.names():
        try:
            path = service.pool.files(name).target
            what = describe(path)
        except LocalspecError:  # its file was changed or moved
            continue
        told = loaded.get(name)
        found[name] = Facts(
            publisher=owners.get(path, ""),
            arch=what.details.family,
            quantization=what.details.quantization_level,
            state="not-loaded" if told is None else "loaded",
            max_context_length=what.header.context_length,
            loaded_context_length=None if told is None else told.context,
            capabilities=["tool_use"] if "tools" in capabilities(what.header, told) else [],
        )
    return found
