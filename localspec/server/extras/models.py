"""/v1/models and LM Studio's /api/v0/models: what may be asked for, what each is, and whether it is loaded.

LM Studio's routes that answer, such as /api/v0/chat/completions, are those of OpenAI's API.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse
from typing_extensions import NotRequired, TypedDict

from localspec.errors import LocalspecError
from localspec.gguf.split import read_parts
from localspec.models.installed.store import Store
from localspec.runtime.loaded import ModelFacts
from localspec.server.chat.fields import Body
from localspec.server.chat.service import Service
from localspec.server.http.errors import BODIES, ApiError, invalid, unknown_model
from localspec.server.http.reading import JsonRoute
from localspec.server.ollama.models import capabilities, describe, stamp

ROUTER = APIRouter(tags=["models"], route_class=JsonRoute)
LM_STUDIO = APIRouter(prefix="/api/v0", tags=["LM Studio"])
BODIES["/api/v0/"] = ApiError.body
_ANTHROPIC = "anthropic-version"
"""A header of Anthropic's clients."""


class FileFacts(TypedDict):
    """What LM Studio's clients ask of a model. What a file that cannot be read does not tell is null or left out."""

    type: Literal["llm"]
    publisher: NotRequired[str | None]  # owner of the repository that it came from; "" = it came from none
    arch: NotRequired[str | None]
    compatibility_type: Literal["gguf"]
    quantization: NotRequired[str | None]
    state: Literal["loaded", "not-loaded"]
    max_context_length: NotRequired[int | None]  # tokens it was trained for
    loaded_context_length: NotRequired[int | None]  # tokens that a conversation may have, if it is loaded
    capabilities: list[Literal["tool_use"]]


class ModelMeta(TypedDict):
    """Facts of a model that is loaded, under llama-server's names."""

    vocab_type: int
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    slots: int
    draft: str | None  # file name of the draft model
    configuration: str  # kernels and cache of the target's passes


class Listed(FileFacts):
    """One model of LM Studio's list."""

    id: str
    object: Literal["model"]


class ModelCard(FileFacts):
    """One model, with LM Studio's facts of its file."""

    id: str
    object: str
    created: int
    owned_by: str
    aliases: list[str]
    status: str  # `loaded` or `unloaded`; it is loaded when a request names it
    meta: ModelMeta | None


class ListedModels(TypedDict):
    """All models, as LM Studio tells them."""

    object: Literal["list"]
    data: list[Listed]


class ModelList(TypedDict):
    """All models."""

    object: str
    data: list[ModelCard]


class NamedModel(Body):
    """POST /models/load and /models/unload."""

    model: str


class Done(TypedDict):
    """It was done."""

    success: bool


@ROUTER.get("/models", summary="List the models", response_model=ModelList)
async def list_models(request: Request) -> Any:
    """The default model first, then everything installed; each may be named in a request. Anthropic's clients, which
    say their version, get their list."""
    found = await _cards(request.app.state.service)
    if _ANTHROPIC not in request.headers:
        return {"object": "list", "data": found}
    data = [_as_anthropic(card) for card in found]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return JSONResponse({"data": data, "has_more": False, **ends})


@ROUTER.get("/models/{name:path}", summary="One model", response_model=ModelCard)
async def get_model(request: Request, name: str) -> Any:
    """A model by its name or alias; names of the hub have a slash in them."""
    service: Service = request.app.state.service
    found = {card["id"]: card for card in await _cards(service)}
    card = found.get(service.resolve(name))
    if card is None:
        raise unknown_model(name, sorted(found))
    return JSONResponse(_as_anthropic(card)) if _ANTHROPIC in request.headers else card


@ROUTER.post("/models/load", summary="Load a model")
async def load(request: Request, fields: NamedModel) -> Done:
    """llama-server's, as its router has it; answers once the model is in memory."""
    (await request.app.state.service.lease(fields.model)).release()
    return {"success": True}


@ROUTER.post("/models/unload", summary="Free a model's memory")
async def unload(request: Request, fields: NamedModel) -> Done:
    """llama-server's; a model that is in use stays."""
    service: Service = request.app.state.service
    name = service.resolve(fields.model)
    names = await to_thread.run_sync(service.pool.names)
    if name not in names:
        raise unknown_model(name, sorted(names))
    try:
        freed = await to_thread.run_sync(service.pool.unload, name)
    except KeyError:
        raise invalid(f"The model {name!r} is not loaded.", "model", "invalid_value") from None
    if not freed:
        raise ApiError(409, "invalid_request_error", f"The model {name!r} is in use.", param="model")
    return {"success": True}


@LM_STUDIO.get("/models", summary="List the models (LM Studio's API)", response_model_exclude_none=True)
async def list_listed(request: Request) -> ListedModels:
    """The default model first, then everything installed that can be read."""
    return {"object": "list", "data": await to_thread.run_sync(_listed, request.app.state.service)}


@LM_STUDIO.get("/models/{name:path}", summary="One model (LM Studio's API)", response_model_exclude_none=True)
async def get_listed(request: Request, name: str) -> Listed:
    """A model by its name or alias."""
    service: Service = request.app.state.service
    found = {one["id"]: one for one in await to_thread.run_sync(_listed, service)}
    model = found.get(service.resolve(name))
    if model is None:
        raise unknown_model(name, sorted(found))
    return model


def _listed(service: Service) -> list[Listed]:
    return [{**facts, "id": name, "object": "model"} for name, facts in _facts(service).items()]


def _facts(service: Service) -> dict[str, FileFacts]:
    """Of each model whose file can be read, the default first."""
    loaded, found = service.pool.facts(), dict[str, FileFacts]()
    owners = {entry.path: entry.origin.partition("/")[0] for entry in Store().entries() if entry.source == "hub"}
    for name in service.pool.names():
        try:
            path = service.pool.files(name).target
            what = describe(path)
        except LocalspecError:  # its file was changed or moved
            continue
        running = loaded.get(name)
        found[name] = {
            "type": "llm",
            "publisher": owners.get(path, ""),
            "arch": what.details.family,
            "compatibility_type": "gguf",
            "quantization": what.details.quantization_level,
            "state": "not-loaded" if running is None else "loaded",
            "max_context_length": what.header.context_length,
            "loaded_context_length": None if running is None else running.context,
            "capabilities": ["tool_use"] if "tools" in capabilities(what.header, running) else [],
        }
    return found


_UNREAD: FileFacts = {
    "type": "llm",
    "publisher": None,
    "arch": None,
    "compatibility_type": "gguf",
    "quantization": None,
    "state": "not-loaded",
    "max_context_length": None,
    "loaded_context_length": None,
    "capabilities": [],
}
"""What is said of a model whose file cannot be read."""


async def _cards(service: Service) -> list[ModelCard]:
    """Every model that may be asked for, the default first."""
    names = await to_thread.run_sync(service.pool.names)
    loaded = service.pool.facts()
    facts = await to_thread.run_sync(_facts, service)
    return [
        {
            **facts.get(name, _UNREAD),
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "localspec",
            "aliases": list(service.settings.aliases) if name == service.pool.default else [],
            "status": "loaded" if name in loaded else "unloaded",
            "meta": _meta(loaded[name]) if name in loaded else None,
        }
        for name, created in names.items()
    ]


def _as_anthropic(card: ModelCard) -> dict[str, str]:
    return {"type": "model", "id": card["id"], "display_name": card["id"], "created_at": stamp(card["created"])}


def _meta(facts: ModelFacts) -> ModelMeta:
    parameters, size = _weight(Path(facts.target))
    return {
        "vocab_type": facts.vocab_type,
        "n_vocab": facts.n_vocab,
        "n_ctx": facts.context,
        "n_ctx_train": facts.n_ctx_train,
        "n_embd": facts.n_embd,
        "n_params": parameters,
        "size": size,
        "slots": facts.slots,
        "draft": None if facts.draft is None else Path(facts.draft).name,
        "configuration": facts.configuration,
    }


@lru_cache(maxsize=64)
def _weight(path: Path) -> tuple[int, int]:
    """Parameters and bytes of a model's tensors, over all parts of its file."""
    tensors = [tensor for header in read_parts(path) for tensor in header.tensors]
    return sum(prod(tensor.shape) for tensor in tensors), sum(tensor.size for tensor in tensors)
