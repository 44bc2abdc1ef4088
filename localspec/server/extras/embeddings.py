"""/v1/embeddings: texts as vectors, where the model allows."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, Field

from localspec.runtime.pool import Lease
from localspec.server.chat.fields import MOST_ITEMS, Body, TextPart, about
from localspec.server.chat.prepare import check_text
from localspec.server.chat.service import Service
from localspec.server.http.output import context_exceeded, invalid, leaving
from localspec.server.http.reading import ModelRoute, Served
from localspec.types import Float32Array, Tokens

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

ROUTER = APIRouter(tags=["embeddings"], route_class=ModelRoute)
MOST_INPUTS = 2048  # texts in one request


class PromptText(Body):
    prompt_string: str


class Parts(Body):
    content: Annotated[list[TextPart], Field(min_length=1, max_length=MOST_ITEMS)]


def _with_a_token(given: list[int | str]) -> list[int | str]:
    if all(isinstance(one, str) for one in given):
        raise ValueError("texts alone are no tokens")
    return given


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Mixed = Annotated[list[TokenId | str], Field(min_length=1), AfterValidator(_with_a_token)]
"""Tokens, and texts between them."""
Input = str | Mixed | PromptText | Parts
Inputs = Input | Annotated[list[Input], Field(min_length=1, max_length=MOST_INPUTS)]
Plain: TypeAlias = str | list[int | str]  # one of them without its object


class EmbeddingsBody(Body):
    input: Inputs
    """A text, its tokens with or without texts between them, an object with a text or its parts, or a list of those."""
    model: str | None = about("Name of a model; None = the default one.")
    encoding_format: Literal["float", "base64"] = "float"
    """Numbers, or the base64 text of their float32 bytes in little-endian order."""
    dimensions: int | None = Field(default=None, ge=1)
    """So many numbers of each vector, scaled to length 1 again; as good as all only where a model was trained so."""
    user: str | None = about("Accepted and not used.")


class Embedding(BaseModel):
    """One vector, of length 1."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """All vectors, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@ROUTER.post("/embeddings", summary="Embed texts")
async def embed(request: Request, service: Served, body: EmbeddingsBody) -> EmbeddingList:
    """A vector for each input: the model's own pooling, scaled to length 1."""

    def tokens(engine: Engine) -> list[Tokens]:
        width = engine.loaded.model.header.number("embedding_length")
        if body.dimensions is not None and body.dimensions > width:
            what = f"dimensions is {body.dimensions}; this model's vectors have {width}."
            raise invalid(what, "dimensions", "invalid_value")
        return tokens_of(engine, several(body.input))

    lease = await service.lease(body.model)
    found, count = await vectors(request, service, lease, tokens)
    data, as_text = [], body.encoding_format == "base64"
    for index, vector in enumerate(found):
        numbers = np.asarray(shortened(vector, body.dimensions), dtype="<f4")
        encoded = base64.b64encode(numbers.tobytes()).decode("ascii") if as_text else numbers.tolist()
        data.append(Embedding(index=index, embedding=encoded))
    usage = EmbeddingUsage(prompt_tokens=count, total_tokens=count)
    return EmbeddingList(data=data, model=lease.name, usage=usage)


async def vectors(
    request: Request, service: Service, lease: Lease, texts: Callable[[Engine], list[Tokens]]
) -> tuple[list[Float32Array], int]:
    """A vector of length 1 for each text, and the tokens of all; `texts` makes them on a worker thread.

    Texts are read in passes between those of answers, which go on; nothing is read for a client that has left.
    Takes the lease over.
    """
    try:
        with service.reading_texts():
            inputs = await to_thread.run_sync(texts, lease.engine)
            found = []
            async with leaving(request) as left:
                for tokens in inputs:
                    vector = await service.read(lease.name, len(tokens), partial(lease.engine.embed, tokens), left)
                    found.append(_unit(vector))
    finally:
        lease.release()
    return found, sum(map(len, inputs))


def shortened(vector: Float32Array, dimensions: int | None) -> Float32Array:
    """The first numbers of a vector, scaled to length 1 again; None = all of them."""
    return vector if dimensions is None or dimensions >= len(vector) else _unit(vector[:dimensions])


def several(given: Inputs) -> list[Plain]:
    """Each of what a field holds that may hold one, without its object."""
    if isinstance(given, list) and not any(isinstance(one, int) for one in given):
        return [_plain(cast("Input", one)) for one in given]
    return [_plain(cast("Input", given))]


def _plain(given: Input) -> Plain:
    if isinstance(given, PromptText):
        return given.prompt_string
    return "".join(part.text for part in given.content) if isinstance(given, Parts) else given


def joined(engine: Engine, parts: list[int | str], param: str, *, special: bool) -> list[int]:
    """Tokens, and texts that came in the field `param`, as tokens; `special`: special tokens are read as such."""
    found: list[int] = []
    model = engine.loaded.model
    for one in parts:
        if isinstance(one, str):
            check_text(one, engine, param, special=special)
            found += model.tokenize(one, special=special, add_bos=model.add_bos and not found).tolist()
        else:
            found.append(one)
    return found


def tokens_of(engine: Engine, texts: Sequence[Plain], most: int | None = None) -> list[Tokens]:
    """The tokens of every text. `most`: longer ones are cut after so many; None = those that the context does not hold
    are refused."""
    found: list[Tokens] = []
    limit, known = engine.loaded.context.n_ctx, engine.loaded.model.n_vocab
    for number, one in enumerate(texts):
        if isinstance(one, str):
            if most is None:
                check_text(one, engine, "input", special=False)
            tokens = engine.tokenize(one, special=False)[:most]
        else:
            tokens = np.asarray(joined(engine, one, "input", special=False), dtype=np.int32)
            if tokens.max() >= known:
                raise invalid(f"input has the token {tokens.max()}; the vocabulary has {known} tokens.", "input")
        if not one or not len(tokens):
            raise invalid(f"input {number} is empty.", "input")
        if len(tokens) > limit:
            raise context_exceeded(len(tokens), limit, "input")
        found.append(tokens)
    return found


def _unit(vector: Float32Array) -> Float32Array:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector
