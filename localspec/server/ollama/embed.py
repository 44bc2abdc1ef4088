"""/api/embed and /api/embeddings: texts as vectors, in Ollama's shapes."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from localspec.server.chat.service import Service
from localspec.server.extras.embeddings import MOST_INPUTS, shortened, tokens_of, vectors
from localspec.server.http.route import ModelRoute
from localspec.server.ollama.body import KeptAlive
from localspec.server.ollama.names import REFUSED, free, named
from localspec.types import Float32Array, Tokens

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

ROUTER = APIRouter(prefix="/api", tags=["ollama"], route_class=ModelRoute, responses=REFUSED)
_LONG_TOKEN = 64
"""Characters of a token at most, in texts that are cut to the context: few tokens are longer."""


class OllamaEmbed(KeptAlive):
    """POST /api/embed."""

    input: str | Annotated[list[str], Field(max_length=MOST_INPUTS)] = Field(
        default_factory=list, description="A text or several; none = only load the model."
    )
    truncate: bool = Field(default=True, description="Cut a text that does not fit the context; else it is refused.")
    dimensions: int | None = Field(default=None, ge=0, description="So many numbers of each vector; 0 = all.")
    options: Any = Field(default=None, description="Accepted and not used.")


class OllamaEmbeddings(KeptAlive):
    """POST /api/embeddings, the older route."""

    prompt: str = Field(default="", description="The text; none = only load the model.")
    options: Any = Field(default=None, description="Accepted and not used.")


class Embedded(BaseModel):
    """Vectors of length 1, in the order of the texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    """Nanoseconds."""
    load_duration: int
    prompt_eval_count: int
    """Tokens of all texts."""


class Vector(BaseModel):
    """One vector of length 1."""

    embedding: list[float]


@ROUTER.post("/embed", summary="Embed texts (Ollama's API)")
async def embed(request: Request, body: OllamaEmbed) -> Embedded:
    """The same vectors as /v1/embeddings."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    begun = perf_counter()
    found, count, loaded = await _vectors(request, body, [text for text in texts if text], cut=body.truncate)
    return Embedded(
        model=body.model or request.app.state.service.pool.default,
        embeddings=[shortened(vector, body.dimensions or None).tolist() for vector in found],
        total_duration=int((perf_counter() - begun) * 1e9),
        load_duration=int((loaded - begun) * 1e9),
        prompt_eval_count=count,
    )


@ROUTER.post("/embeddings", summary="Embed a text (Ollama's older API)")
async def embeddings(request: Request, body: OllamaEmbeddings) -> Vector:
    """One vector."""
    found, _, _ = await _vectors(request, body, [body.prompt] if body.prompt else [], cut=True)
    return Vector(embedding=found[0].tolist() if found else [])


async def _vectors(
    request: Request, body: KeptAlive, texts: list[str], *, cut: bool
) -> tuple[list[Float32Array], int, float]:
    """A vector for each text, the tokens of all, and when the model was in memory."""
    service: Service = request.app.state.service
    name = await named(service, body.model)
    lease = await service.lease(name)
    loaded = perf_counter()
    try:
        found, count = await vectors(request, lease, partial(_tokens, texts, cut)) if texts else ([], 0)
    finally:
        lease.release()
    if body.frees:
        await free(service, name)
    return found, count, loaded


def _tokens(texts: list[str], cut: bool, engine: Engine) -> list[Tokens]:
    limit = engine.loaded.context.n_ctx
    if not cut:
        return tokens_of(engine, texts)
    return [tokens_of(engine, [text[: limit * _LONG_TOKEN]], limit)[0] for text in texts]
