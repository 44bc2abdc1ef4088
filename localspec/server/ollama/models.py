"""/api/tags, /api/ps, /api/show, /api/version and /api/pull: which models there are and what they are, as Ollama's
clients name them, and the installing of one, where the server was told that it may. Errors as they read them."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from time import monotonic, time
from typing import Any, ClassVar, Literal

from anyio import move_on_after, to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, field_validator
from starlette.responses import Response

from localspec import __version__
from localspec.chat.reply.reply import THOUGHTS
from localspec.drafters.heads.head import find, out_of_reach
from localspec.errors import LocalspecError
from localspec.gguf import Header, read_parts
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Store
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.memory import places
from localspec.server.chat.fields import Body, Json, Unused, about
from localspec.server.chat.service import Service, ending
from localspec.server.http.output import BODIES, LINES, ApiError, from_localspec, invalid, respond
from localspec.server.http.reading import JsonRoute, Served

_LATEST = ":latest"  # what Ollama's clients put after a name that has no tag
_DURATION = re.compile(r"[-+]?(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h)?)+")
"""As Go writes them, `5m` or `1h30m`; a number without a unit counts seconds."""
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {LINES.media_type: {"schema": {"type": "string"}}}}}
"""For the OpenAPI document: a path answers with objects, one a line, unless `stream` is false."""


class OllamaError(BaseModel):
    error: str


REFUSED: dict[int | str, dict[str, Any]] = {"4XX": {"model": OllamaError}, "5XX": {"model": OllamaError}}
"""For the OpenAPI document: what all routes of this API say when they cannot do what is asked."""


def error_body(error: ApiError) -> Json:
    return {"error": error.message}


BODIES["/api/"] = error_body


class KeptAlive(Body):
    """What names a model and says how long it stays in memory."""

    model: str | None = about("Name of a model; left out: the default.")
    keep_alive: str | float | None = about("0 frees the model's memory after the answer; else `--idle-unload` decides.")

    @field_validator("keep_alive")
    @classmethod
    def _is_duration(cls, value: str | float | None) -> str | float | None:
        if isinstance(value, str) and not _DURATION.fullmatch(value.strip()):
            raise ValueError("it must be a number of seconds or a duration such as 5m")
        return value

    @property
    def frees(self) -> bool:
        """Whether the model's memory is not needed after this request."""
        if isinstance(self.keep_alive, str):
            return not re.search("[1-9]", self.keep_alive)
        return self.keep_alive == 0


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
    version: str  # version of Ollama whose API this is
    localspec: str  # version of localspec


class Details(BaseModel):
    parent_model: str = ""
    format: str = "gguf"
    family: str  # its architecture
    families: list[str]
    parameter_size: str  # such as `1.5B`
    quantization_level: str


class OllamaModel(BaseModel):
    name: str
    model: str  # the same
    size: int  # bytes of its files, or of its weights if it is in memory
    digest: str  # SHA-256 of the file as it was installed; of the first MiB and the size for a file that was not
    details: Details


class Tag(OllamaModel):
    """A model that may be asked for."""

    modified_at: str  # when it was installed


class Tags(BaseModel):
    models: list[Tag]


class Running(OllamaModel):
    expires_at: str  # when it leaves memory if no request asks for it; far away if it stays
    size_vram: int  # bytes of its weights on GPUs
    context_length: int  # tokens a conversation may have


class RunningModels(BaseModel):
    models: list[Running]


class ShowBody(Body):
    other_names: ClassVar[dict[str, str]] = {"name": "model"}
    model: str | None = about("Name of a model; left out: the default.")
    verbose: bool | None = about("Accepted and not used: long lists are always left out.")


class Shown(BaseModel):
    modelfile: str
    parameters: str = ""  # settings of its own: models here have none
    template: str  # its chat template, in Jinja
    license: str
    details: Details
    model_info: Json  # metadata of the file; null for long lists
    capabilities: list[Capability]
    modified_at: str


@dataclass(frozen=True, slots=True)
class _Described:
    """What is told of a file."""

    details: Details
    bytes: int  # of all parts
    weights: int  # bytes of the tensors
    parameters: int
    digest: str
    header: Header  # of the first part


@ROUTER.get("/version", summary="Version of Ollama's API")
async def version() -> ApiVersion:
    """Ollama's clients ask it to see what the server knows."""
    return ApiVersion(version=API_VERSION, localspec=__version__)


@ROUTER.get("/tags", summary="List the models (Ollama's API)")
def tags(service: Served) -> Tags:
    """The default model first, then everything installed that can be read."""
    found: list[Tag] = []
    for name, created in service.pool.names().items():
        try:
            what = describe(service.pool.files(name).target)
        except LocalspecError:  # its file was changed or moved
            continue
        aliases = service.settings.aliases if name == service.pool.default else ()
        found += [Tag(**_facts(one, what, what.bytes), modified_at=stamp(created)) for one in (name, *aliases)]
    return Tags(models=found)


@ROUTER.get("/ps", summary="List the models in memory (Ollama's API)")
def running(service: Served) -> RunningModels:
    """Those that answer without being loaded first."""
    found = []
    for name, facts in service.pool.facts().items():
        what, left = describe(Path(facts.target)), service.pool.leaves_in(name)
        found.append(
            Running(
                **_facts(name, what, what.weights),
                expires_at=NEVER if left is None else stamp(time() + left),
                size_vram=int(what.weights * facts.on_gpus),
                context_length=facts.context,
            )
        )
    return RunningModels(models=found)


def _facts(name: str, what: _Described, size: int) -> Json:
    """Fields of an `OllamaModel`."""
    return {"name": name, "model": name, "size": size, "digest": what.digest, "details": what.details}


@ROUTER.post("/show", summary="What a model is (Ollama's API)")
async def show(service: Served, body: ShowBody) -> Shown:
    """Facts from its file; it is not loaded for this."""
    name = await named(service, body.model)
    what = await to_thread.run_sync(lambda: describe(service.pool.files(name).target))
    names, facts = await to_thread.run_sync(service.pool.names), service.pool.facts().get(name)
    template = what.header.chat_template or ""
    info = {key: _plain(value) for key, value in what.header.metadata.items() if key != "tokenizer.chat_template"}
    info["general.parameter_count"] = what.parameters
    return Shown(
        modelfile=f"# Made by localspec {__version__}.\nFROM {name}\n",
        template=template,
        license=what.header.text("general.license"),
        details=what.details,
        model_info=info,
        capabilities=capabilities(what.header, facts),
        modified_at=stamp(names.get(name, 0)),
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
    first, size, parameters = parts[0], sum(part.file_bytes for part in parts), sum(part.parameters for part in parts)
    details = Details(
        family=first.architecture,
        families=[first.architecture],
        parameter_size=_human(parameters),
        quantization_level=first.quantisation,
    )
    sums = next(([file.sha256 for file in entry.files] for entry in Store().entries() if entry.path == path), None)
    if sums is None:
        with path.open("rb") as file:
            digest = sha256(file.read(_HEAD) + size.to_bytes(8, "little")).hexdigest()
    else:
        digest = sums[0] if len(sums) == 1 else sha256("\n".join(sums).encode()).hexdigest()
    return _Described(details, size, sum(part.tensor_bytes for part in parts), parameters, digest, first)


def _human(count: int) -> str:
    """A number of parameters as Ollama writes it: 1.5B, 134.52M, 12K."""
    for size, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= size:
            return f"{count / size:.{digits}f}{letter}"
    return str(count)


def _plain(value: Any) -> Any:
    """A value of the metadata as JSON can tell it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int) else None


_SECONDS = 0.25  # how often the progress of a file is told


class OllamaPull(Body):
    other_names: ClassVar[dict[str, str]] = {"name": "model"}
    model: str = Field(min_length=1, description="A pair or model of the catalogue, or `user/repo[:quant]`.")
    stream: bool = True
    insecure: Unused = None


class PullProgress(BaseModel):
    status: str  # what is done now; `success` at the end
    digest: str | None = None  # of the file that comes
    total: int | None = None  # bytes of it
    completed: int | None = None  # bytes that are here


@ROUTER.post("/pull", summary="Install a model (Ollama's API)", response_model=PullProgress, responses=STREAMED)
async def pull(request: Request, service: Served, body: OllamaPull) -> Response:
    """What `localspec pull` does; a model that is installed is left as it is."""
    work = _Pull(service, body.model)
    names = await to_thread.run_sync(service.pool.names)
    if any(one in names for one in spellings(service, body.model)):
        work.done = True
    elif not service.settings.allow_pull:
        what = "This server installs no models. Start it with --allow-pull, or use `localspec pull` on its machine."
        raise ApiError(403, "permission_error", what)
    elif "://" in body.model:
        raise invalid("model is an address; name a model of the catalogue or user/repo[:quant].", "model")
    return await respond(request, work, work, body.stream, LINES)


class _Pull:
    """One pull, on a thread of its own; it is stopped when it is closed."""

    def __init__(self, service: Service, name: str) -> None:
        self._service, self._name = service, name
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Queue[Any]()  # states; at the end None, or what went wrong
        self._stop = threading.Event()
        self._told: dict[str, tuple[float, str]] = {}
        self._digests: dict[str, str] = {}
        self.done = False  # it is installed already

    def close(self) -> None:
        self._stop.set()

    async def collected(self) -> Json:
        """The last state."""
        return [state async for state in self.chunks(self._service.settings.ping_seconds)][-1]

    async def chunks(self, silence: float) -> AsyncIterator[Json]:
        """What is done, as it is done; the last state again after some silence."""
        state: Json = {"status": "pulling manifest"}
        yield state
        if not self.done:
            task = asyncio.ensure_future(to_thread.run_sync(self._work, limiter=self._service.pulling))
            task.add_done_callback(lambda done: self._news.put_nowait(None if done.cancelled() else done.exception()))
            while True:
                item: Any = state
                with move_on_after(silence):
                    item = await self._news.get()
                if self._service.ending:
                    raise ending()
                if item is None:
                    break
                if isinstance(item, Exception):
                    raise from_localspec(item) if isinstance(item, LocalspecError) else item
                state = item
                yield state
        yield {"status": "success"}

    def _work(self) -> None:
        """Worker thread: plans, fetches, checks, lists."""
        from localspec.models.hub.hub import Hub  # a quarter of a second that a start saves
        from localspec.models.hub.pull import check_disk, install, make_plan, wishes

        hub, store = Hub(), Store()
        wanted = wishes(self._name, hub)
        plan = make_plan(wanted, hub, store, None, places(), catalog=Catalog.load(), reach=out_of_reach)
        check_disk(plan)
        files = [transfer for part in plan.parts for transfer in part.transfers]
        self._digests = {one.label: f"sha256:{one.file.sha256}" for one in files if one.file.sha256}
        install(plan, hub, store, self._report, self._stop, find)

    def _report(self, file: str, done: int, size: int, what: str) -> None:
        """Any thread: progress of a file."""
        now, (before, was) = monotonic(), self._told.get(file, (0.0, ""))
        if what == was and done < size and now - before < _SECONDS:
            return
        self._told[file] = now, what
        verb = {"loading": "pulling", "checking": "verifying sha256 digest of", "waiting": "waiting for"}[what]
        state: Json = {"status": f"{verb} {file}", "total": size, "completed": done}
        if file in self._digests:
            state["digest"] = self._digests[file]
        self._loop.call_soon_threadsafe(self._news.put_nowait, state)
