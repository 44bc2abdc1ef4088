"""/v1/models and LM Studio's /api/v0/models: what may be asked for, what each is, and whether it is loaded; and at / a
page for people that says what runs here and how to connect to it.

LM Studio's routes that answer, such as /api/v0/chat/completions, are those of OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, Literal, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse
from typing_extensions import NotRequired, TypedDict

from localspec import __version__
from localspec.errors import LocalspecError
from localspec.gguf import read_parts
from localspec.models.installed.store import Store
from localspec.runtime.loaded import ModelFacts
from localspec.server.chat.fields import Body
from localspec.server.chat.service import Service
from localspec.server.http.output import BODIES, ApiError, invalid, unknown_model
from localspec.server.http.reading import JsonRoute, Served
from localspec.server.ollama.models import capabilities, describe, stamp

ROUTER = APIRouter(tags=["models"], route_class=JsonRoute)
LM_STUDIO = APIRouter(prefix="/api/v0", tags=["LM Studio"])
BODIES["/api/v0/"] = ApiError.body
_ANTHROPIC = "anthropic-version"  # a header of Anthropic's clients


class Listed(TypedDict):
    """What LM Studio's clients ask of a model. What a file that cannot be read does not tell is null or left out."""

    id: str
    object: Literal["model"]
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


class ModelCard(Listed):
    """One model, with LM Studio's facts of its file."""

    created: int
    owned_by: str
    aliases: list[str]
    status: str  # `loaded` or `unloaded`; it is loaded when a request names it
    meta: ModelMeta | None


_Model = TypeVar("_Model", Listed, ModelCard)


class ListedModels(TypedDict):
    object: Literal["list"]
    data: list[Listed]


class ModelList(TypedDict):
    object: str
    data: list[ModelCard]


class NamedModel(Body):
    """POST /models/load and /models/unload."""

    model: str


class Done(TypedDict):
    success: bool


@ROUTER.get("/models", summary="List the models", response_model=ModelList)
def list_models(request: Request, service: Served) -> Any:
    """The default model first, then everything installed; each may be named in a request. Anthropic's clients, which
    say their version, get their list."""
    found = _cards(service)
    if _ANTHROPIC not in request.headers:
        return {"object": "list", "data": found}
    data = [_as_anthropic(card) for card in found]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return JSONResponse({"data": data, "has_more": False, **ends})


@ROUTER.get("/models/{name:path}", summary="One model", response_model=ModelCard)
def get_model(request: Request, service: Served, name: str) -> Any:
    """A model by its name or alias; names of the hub have a slash in them."""
    card = _of_name(service, _cards(service), name)
    return JSONResponse(_as_anthropic(card)) if _ANTHROPIC in request.headers else card


@ROUTER.post("/models/load", summary="Load a model")
async def load(service: Served, fields: NamedModel) -> Done:
    """llama-server's, as its router has it; answers once the model is in memory."""
    (await service.lease(fields.model)).release()
    return {"success": True}


@ROUTER.post("/models/unload", summary="Free a model's memory")
async def unload(service: Served, fields: NamedModel) -> Done:
    """llama-server's; a model that is in use stays."""
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
def list_listed(service: Served) -> ListedModels:
    """The default model first, then everything installed that can be read."""
    return {"object": "list", "data": _listed(service)}


@LM_STUDIO.get("/models/{name:path}", summary="One model (LM Studio's API)", response_model_exclude_none=True)
def get_listed(service: Served, name: str) -> Listed:
    """A model by its name or alias."""
    return _of_name(service, _listed(service), name)


def _of_name(service: Service, models: Sequence[_Model], name: str) -> _Model:
    found = {one["id"]: one for one in models}
    if service.resolve(name) not in found:
        raise unknown_model(name, sorted(found))
    return found[service.resolve(name)]


def _listed(service: Service) -> list[Listed]:
    return [one for one in _facts(service, service.pool.names()).values() if one["arch"] is not None]


def _facts(service: Service, names: Iterable[str]) -> dict[str, Listed]:
    """Of each of these models; what a file that cannot be read does not tell is None."""
    loaded, found = service.pool.facts(), dict[str, Listed]()
    owners = {entry.path: entry.origin.partition("/")[0] for entry in Store().entries() if entry.source == "hub"}
    for name in names:
        what, owner, running = None, None, None
        with suppress(LocalspecError):  # else its file was changed or moved
            path = service.pool.files(name).target
            what, owner, running = describe(path), owners.get(path, ""), loaded.get(name)
        found[name] = {
            "id": name,
            "object": "model",
            "type": "llm",
            "publisher": owner,
            "arch": what.details.family if what else None,
            "compatibility_type": "gguf",
            "quantization": what.details.quantization_level if what else None,
            "state": "loaded" if running else "not-loaded",
            "max_context_length": what.header.context_length if what else None,
            "loaded_context_length": running.context if running else None,
            "capabilities": ["tool_use"] if what and "tools" in capabilities(what.header, running) else [],
        }
    return found


def _cards(service: Service) -> list[ModelCard]:
    """Every model that may be asked for, the default first."""
    loaded, names = service.pool.facts(), service.pool.names()
    facts = _facts(service, names)
    return [
        {
            **facts[name],
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
    parts = read_parts(path)
    return sum(part.parameters for part in parts), sum(part.tensor_bytes for part in parts)


PAGE = APIRouter(tags=["page"])  # it has no scripts and loads nothing
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-store"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
td, th { text-align: left; padding: 0 1.5rem 0 0 }
"""
_APIS = (
    ("OpenAI", "/v1", "chat/completions, responses, completions, embeddings, models"),
    ("Anthropic", "", "v1/messages"),
    ("Ollama", "", "api/chat, api/generate, api/tags, api/show, api/ps"),
    (
        "llama-server",
        "",
        "health, metrics, props, slots, completion, infill, embedding, tokenize, detokenize, apply-template",
    ),
)
"""Whose API, what goes after the server's address to make the client's base address, and the routes below that."""


@PAGE.get("/", summary="A page about the server", response_class=HTMLResponse)
async def page(request: Request, service: Served) -> HTMLResponse:
    """What is loaded, which APIs there are, and how to connect."""
    loaded = list[tuple[str, ...]]()
    for name, facts in service.pool.facts().items():
        used = min((await service.under_way(name)).count, facts.slots)
        loaded.append((name, f"{facts.context}", f"{used} of {facts.slots}"))
    address = str(request.base_url).rstrip("/")
    where, default = escape(address), escape(service.pool.default)
    apis = [(whose, f"{address}{base}", routes) for whose, base, routes in _APIS]
    key = "<p>Clients send an API key of this server.</p>" if service.settings.api_keys else ""
    models = _table(("Model in memory", "Context", "Slots in use"), loaded) if loaded else "<p>No model is loaded.</p>"
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>localspec</title><style>{_STYLE}</style></head><body>
<h1>localspec {escape(__version__)}</h1>
<p>The default model is <b>{default}</b>. Another one that is installed is loaded when a request names it:
<a href="/v1/models">list of the models</a>.</p>
{models}
<h2>Connect</h2>
{_table(("API", "Base address", "Routes"), apis)}
{key}<pre>curl {where}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"messages": [{{"role": "user", "content": "Hello"}}]}}'
OLLAMA_HOST={where} python3 -c 'import ollama; print(ollama.list())'</pre>
<p><a href="/openapi.json">Description of all routes</a>, <a href="/metrics">metrics</a>,
<a href="/slots">slots</a>.</p>
</body></html>
"""
    return HTMLResponse(text, headers=_HEADERS)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    first = "".join(f"<th>{escape(head)}</th>" for head in heads)
    more = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table>\n<tr>{first}</tr>\n{more}</table>"
