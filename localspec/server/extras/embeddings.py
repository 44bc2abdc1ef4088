"""/v1/embeddings: texts as vectors, where the model allows."""

from __future__ import annotations

import base64
from functools import partial
from typing import Annotated, Literal

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from localspec.runtime.engine import Engine
from localspec.server.chat.fields import Body
from localspec.server.chat.prepare import check_text
from localspec.server.chat.service import Service
from localspec.server.http.errors import context_exceeded, invalid
from localspec.server.http.route import JsonRoute
from localspec.server.http.streaming import leaving
from localspec.types import Float32Array, Tokens

ROUTER = APIRouter(tags=["embeddings"], route_class=JsonRoute)
MOST_INPUTS = 2048
"""Texts in one request."""

TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class EmbeddingsBody(Body):
    """What is to be embedded."""

    input: str | TokenIds | Annotated[list[str] | list[TokenIds], Field(min_length=1, max_length=MOST_INPUTS)]
    """A text, the tokens of one, or a list of either."""
    model: str | None = None
    """Name of a model; None = the default one."""
    encoding_format: Literal["float", "base64"] = "float"
    """Numbers, or the base64 text of their float32 bytes in little-endian order."""
    user: str | None = None
    """Accepted and not used."""


class Embedding(BaseModel):
    """One vector, of length 1."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """What it cost."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """All vectors, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@ROUTER.post("/embeddings", summary="Embed texts")
async def embed(request: Request, body: EmbeddingsBody) -> EmbeddingList:
    """A vector for each input: the model's own pooling, scaled to length 1.

    Texts are read in passes between those of answers, which go on; nothing is read for a client that has left.
    """
    service: Service = request.app.state.service
    lease = await service.lease(body.model)
    try:
        with service.reading_texts():
            inputs = await to_thread.run_sync(_tokens, lease.engine, body)
            data = []
            async with leaving(request) as left:
                for index, tokens in enumerate(inputs):
                    vector = await service.read(lease.name, len(tokens), partial(lease.engine.embed, tokens), left)
                    data.append(Embedding(index=index, embedding=_encoded(vector, body.encoding_format)))
    finally:
        lease.release()
    count = sum(map(len, inputs))
    usage = EmbeddingUsage(prompt_tokens=count, total_tokens=count)
    return EmbeddingList(data=data, model=lease.name, usage=usage)


def _tokens(engine: Engine, body: EmbeddingsBody) -> list[Tokens]:
    """The tokens of every input."""
    given = body.input
    if isinstance(given, str) or isinstance(given[0], int):
        given = [given]  # type: ignore[assignment]
    found: list[Tokens] = []
    limit, known = engine.loaded.context.n_ctx, engine.loaded.model.n_vocab
    for number, one in enumerate(given):
        if isinstance(one, str):
            check_text(one, engine, "input", special=False)
            tokens = engine.tokenize(one, special=False)
        else:
            tokens = np.asarray(one, dtype=np.int32)
            if tokens.max() >= known:
                raise invalid(f"input has the token {tokens.max()}; the vocabulary has {known} tokens.", "input")
        if not one or not len(tokens):
            raise invalid(f"input {number} is empty.", "input")
        if len(tokens) > limit:
            raise context_exceeded(len(tokens), limit, "input")
        found.append(tokens)
    return found


def _encoded(vector: Float32Array, encoding: str) -> list[float] | str:
    length = float(np.linalg.norm(vector))
    unit = vector / length if length > 0 else vector
    if encoding == "base64":
        return base64.b64encode(np.asarray(unit, dtype="<f4").tobytes()).decode("ascii")
    return [float(value) for value in unit]
