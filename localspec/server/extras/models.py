"""/v1/models: what may be asked for."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from localspec.gguf.split import read_parts
from localspec.runtime.loaded import ModelFacts
from localspec.server.chat.fields import Body
from localspec.server.chat.service import Service
from localspec.server.extras.lm_studio import Facts, facts_of
from localspec.server.http.errors import ApiError, invalid, unknown_model
from localspec.server.http.route import JsonRoute
from localspec.server.ollama.models import stamp

ROUTER = APIRouter(tags=["models"], route_class=JsonRoute)
_ANTHROPIC = "anthropic-version"
"""A header of Anthropic's clients."""


class ModelMeta(BaseModel):
    """Facts of a model that is loaded, under llama-server's names."""

    vocab_type: int
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    slots: int
    draft: str | None
    """File name of the draft model."""
    configuration: str
    """Kernels and cache of the target's passes."""


class ModelCard(Facts):
    """One model, with LM Studio's facts of its file."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "localspec"
    aliases: list[str] = Field(default_factory=list)
    status: str = "unloaded"
    """`loaded` or `unloaded`; it is loaded when a request names it."""
    meta: ModelMeta | None = None


class ModelList(BaseModel):
    """All models."""

    object: str = "list"
    data: list[ModelCard]


class NamedModel(Body):
    """POST /models/load and /models/unload."""

    model: str


class Done(BaseModel):
    """It was done."""

    success: bool = True


async def cards(service: Service) -> list[ModelCard]:
    """Every model that may be asked for, the default first."""
    names = await to_thread.run_sync(service.pool.names)
    loaded = service.pool.facts()
    facts = await to_thread.run_sync(facts_of, service)
    return [_card(service, name, created, loaded.get(name), facts.get(name)) for name, created in names.items()]


def _as_anthropic(card: ModelCard) -> dict[str, str]:
    return {"type": "model", "id": card.id, "display_name": card.id, "created_at": stamp(card.created)}


@ROUTER.get("/models", summary="List the models", response_model=ModelList)
async def list_models(request: Request) -> Any:
    """The default model first, then everything installed; each may be named in a request. Anthropic's clients, which
    say their version, get their list."""
    found = await cards(request.app.state.service)
    if _ANTHROPIC not in request.headers:
        return ModelList(data=found)
    data = [_as_anthropic(card) for card in found]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return JSONResponse({"data": data, "has_more": False, **ends})


@ROUTER.get("/models/{name:path}", summary="One model", response_model=ModelCard)
async def get_model(request: Request, name: str) -> Any:
    """A model by its name or alias; names of the hub have a slash in them."""
    service: Service = request.app.state.service
    found = {card.id: card for card in await cards(service)}
    card = found.get(service.resolve(name))
    if card is None:
        raise unknown_model(name, sorted(found))
    return JSONResponse(_as_anthropic(card)) if _ANTHROPIC in request.headers else card


@ROUTER.post("/models/load", summary="Load a model")
async def load(request: Request, fields: NamedModel) -> Done:
    """llama-server's, as its router has it; answers once the model is in memory."""
    (await request.app.state.service.lease(fields.model)).release()
    return Done()


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
    return Done()


def _card(service: Service, name: str, created: int, loaded: ModelFacts | None, facts: Facts | None) -> ModelCard:
    aliases = list(service.settings.aliases) if name == service.pool.default else []
    card = ModelCard(id=name, created=created, aliases=aliases, **(facts.model_dump() if facts else {}))
    if loaded is not None:
        card.status, card.meta = "loaded", ModelMeta(**_meta(loaded))
    return card


def _meta(facts: ModelFacts) -> dict[str, Any]:
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
        "heads": {name: Path(path).name for name, path in facts.heads.items()},
        "configuration": facts.configuration,
    }


@lru_cache(maxsize=64)
def _weight(path: Path) -> tuple[int, int]:
    """Parameters and bytes of a model's tensors, over all parts of its file."""
    tensors = [tensor for header in read_parts(path) for tensor in header.tensors]
    return sum(prod(tensor.shape) for tensor in tensors), sum(tensor.size for tensor in tensors)
