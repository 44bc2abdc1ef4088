"""/api/tags, /api/ps, /api/show and /api/version: which models there are, and what they are.

Models as Ollama's clients name them, and errors as they read them.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, ClassVar, Literal

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from localspec import __version__
from localspec.chat.reply.reply import THOUGHTS
from localspec.errors import LocalspecError
from localspec.gguf import Header
from localspec.gguf.split import read_parts
from localspec.models.installed.store import Store
from localspec.runtime.loaded import ModelFacts
from localspec.server.chat.fields import Body
from localspec.server.chat.service import Service
from localspec.server.http.errors import BODIES, ApiError
from localspec.server.http.reading import JsonRoute

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
    """What a model is called here; none given is the default. ApiError 404: there is no such model."""
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


ROUTER = APIRouter(prefix="/api", tags=["ollama"], route_class=JsonRoute, responses=REFUSED)
API_VERSION = "0.12.11"
"""The version of Ollama whose API this is. Its clients refuse servers that call themselves older than they need."""
NEVER = "2318-01-01T00:00:00Z"
"""When a model leaves memory that stays there: clients want a time, and Ollama itself says one 292 years away."""
_HEAD = 1 << 20
"""Bytes of a file that its digest is made of where the index of installed models has none: the header is in them."""
_FILL_IN = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")
"""Metadata of models that fill in gaps."""
Capability = Literal["completion", "tools", "thinking", "insert"]


class ApiVersion(BaseModel):
    """Which API is spoken, and who speaks it."""

    version: str  # version of Ollama whose API this is
    localspec: str  # version of localspec


class Details(BaseModel):
    """What a model is."""

    parent_model: str = ""
    format: str = "gguf"
    family: str  # its architecture
    families: list[str]
    parameter_size: str  # such as `1.5B`
    quantization_level: str


class Tag(BaseModel):
    """A model that may be asked for."""

    name: str
    model: str  # the same
    modified_at: str  # when it was installed
    size: int  # bytes of its files
    digest: str  # SHA-256 of the file as it was installed; of the first MiB and the size for a file that was not
    details: Details


class Tags(BaseModel):
    """All models."""

    models: list[Tag]


class Running(BaseModel):
    """A model in memory."""

    name: str
    model: str  # the same
    size: int  # bytes of its weights
    digest: str
    details: Details
    expires_at: str  # when it leaves memory if no request asks for it; far away if it stays
    size_vram: int  # bytes of its weights on GPUs
    context_length: int  # tokens a conversation may have


class RunningModels(BaseModel):
    """Models in memory."""

    models: list[Running]


class ShowBody(Body):
    """POST /api/show."""

    other_names: ClassVar[dict[str, str]] = {"name": "model"}
    model: str | None = Field(default=None, description="Name of a model; left out: the default.")
    verbose: bool | None = Field(default=None, description="Accepted and not used: long lists are always left out.")


class Shown(BaseModel):
    """Facts of a model."""

    modelfile: str
    parameters: str = ""  # settings of its own: models here have none
    template: str  # its chat template, in Jinja
    license: str
    details: Details
    model_info: dict[str, Any]  # metadata of the file; null for long lists
    capabilities: list[Capability]
    modified_at: str


@dataclass(frozen=True, slots=True)
class _Described:
    """What is told of a file."""

    details: Details
    bytes: int
    """Of all parts."""
    weights: int
    """Bytes of the tensors."""
    digest: str
    header: Header
    """Of the first part."""


@ROUTER.get("/version", summary="Version of Ollama's API")
async def version() -> ApiVersion:
    """Ollama's clients ask it to see what the server knows."""
    return ApiVersion(version=API_VERSION, localspec=__version__)


@ROUTER.get("/tags", summary="List the models (Ollama's API)")
async def tags(request: Request) -> Tags:
    """The default model first, then everything installed that can be read."""
    return Tags(models=await to_thread.run_sync(_tags, request.app.state.service))


def _tags(service: Service) -> list[Tag]:
    found = []
    for name, created in service.pool.names().items():
        try:
            what = describe(service.pool.files(name).target)
        except LocalspecError:  # its file was changed or moved
            continue
        aliases = service.settings.aliases if name == service.pool.default else ()
        found += [
            Tag(
                name=one,
                model=one,
                modified_at=stamp(created),
                size=what.bytes,
                digest=what.digest,
                details=what.details,
            )
            for one in (name, *aliases)
        ]
    return found


@ROUTER.get("/ps", summary="List the models in memory (Ollama's API)")
async def running(request: Request) -> RunningModels:
    """Those that answer without being loaded first."""
    return RunningModels(models=await to_thread.run_sync(_running, request.app.state.service))


def _running(service: Service) -> list[Running]:
    found = []
    for name, facts in service.pool.facts().items():
        what, left = describe(Path(facts.target)), service.pool.leaves_in(name)
        found.append(
            Running(
                name=name,
                model=name,
                size=what.weights,
                digest=what.digest,
                details=what.details,
                expires_at=NEVER if left is None else stamp(time() + left),
                size_vram=int(what.weights * facts.on_gpus),
                context_length=facts.context,
            )
        )
    return found


@ROUTER.post("/show", summary="What a model is (Ollama's API)")
async def show(request: Request, body: ShowBody) -> Shown:
    """Facts from its file; it is not loaded for this."""
    service: Service = request.app.state.service
    name = await named(service, body.model)
    return await to_thread.run_sync(_shown, service, name)


def _shown(service: Service, name: str) -> Shown:
    what, facts = describe(service.pool.files(name).target), service.pool.facts().get(name)
    template = what.header.chat_template or ""
    info = {key: _plain(value) for key, value in what.header.metadata.items() if key != "tokenizer.chat_template"}
    info["general.parameter_count"] = sum(part.parameters for part in read_parts(what.header.path))
    return Shown(
        modelfile=f"# Made by localspec {__version__}.\nFROM {name}\n",
        template=template,
        license=what.header.text("general.license"),
        details=what.details,
        model_info=info,
        capabilities=capabilities(what.header, facts),
        modified_at=stamp(service.pool.names().get(name, 0)),
    )


def capabilities(header: Header, facts: ModelFacts | None) -> list[Capability]:
    """What a model can do, in Ollama's words; `facts` of one in memory know of more marks than the metadata."""
    found: list[Capability] = ["completion"]
    template = header.chat_template or ""
    if template:
        found.append("tools")
    marks = ("enable_thinking", "reasoning_effort", *(thought.opening for thought in THOUGHTS))
    if any(mark in template for mark in marks):
        found.append("thinking")
    if any(key in header.metadata for key in _FILL_IN) or (facts is not None and facts.fills_in):
        found.append("insert")
    return found


def describe(path: Path) -> _Described:
    """What is told of a model's file."""
    return _described(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=256)
def _described(path: Path, changed: int) -> _Described:
    parts = read_parts(path)
    first = parts[0]
    details = Details(
        family=first.architecture,
        families=[first.architecture],
        parameter_size=_human(sum(part.parameters for part in parts)),
        quantization_level=first.quantisation,
    )
    size, weights = sum(part.file_bytes for part in parts), sum(part.tensor_bytes for part in parts)
    return _Described(details, size, weights, _digest(path, size), first)


def _digest(path: Path, size: int) -> str:
    for entry in Store().entries():
        if entry.path == path:
            sums = [file.sha256 for file in entry.files]
            return sums[0] if len(sums) == 1 else sha256("\n".join(sums).encode()).hexdigest()
    with path.open("rb") as file:
        return sha256(file.read(_HEAD) + size.to_bytes(8, "little")).hexdigest()


def _human(count: int) -> str:
    """A number of parameters as Ollama writes it: 1.5B, 134.52M, 12K."""
    for size, letter, places in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= size:
            return f"{count / size:.{places}f}{letter}"
    return str(count)


def _plain(value: Any) -> Any:
    """A value of the metadata as JSON can tell it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int) else None
