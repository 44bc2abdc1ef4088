"""/api/chat and /api/generate: Ollama's ways to ask for an answer, streamed as a JSON object a line, or whole.

/api/embed and /api/embeddings: texts as vectors, in Ollama's shapes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask
from starlette.responses import Response

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.server.chat.chat_fields import ChatFields
from localspec.server.chat.completions import CompletionFields, known_tokens
from localspec.server.chat.exchange import Answering, Continuation, Exchange, arguments_of
from localspec.server.chat.prepare import check_length, prepared
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import TokenLogProbs, chat_log_probs
from localspec.server.extras.embeddings import MOST_INPUTS, joined, shortened, tokens_of, vectors
from localspec.server.http.errors import invalid
from localspec.server.http.route import ModelRoute
from localspec.server.http.streaming import EventStream, compact, json_response, told, whole
from localspec.server.ollama.body import KeptAlive, OllamaChat, OllamaGenerate, Wanted
from localspec.server.ollama.models import LINES, NDJSON, REFUSED, error_body, free, named, stamp
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


class Called(BaseModel):
    """A function and what it is given."""

    index: int
    name: str
    arguments: dict[str, Any]


class CallOfTool(BaseModel):
    """A call the model asks for."""

    id: str
    function: Called


class Spoken(BaseModel):
    """What is new of the assistant's message; all of it if the answer comes whole."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[CallOfTool] | None = None


class Progress(BaseModel):
    """What every object says; the durations, in nanoseconds, and the counts come with the last."""

    model: str
    """As the request named it."""
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    """Until the model was in memory."""
    prompt_eval_count: int | None = None
    """Tokens of the prompt, cached ones too."""
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    """Tokens of the answer."""
    eval_duration: int | None = None
    logprobs: list[TokenLogProbs] | None = None


class ChatProgress(Progress):
    """An object of /api/chat."""

    message: Spoken


class TextProgress(Progress):
    """An object of /api/generate."""

    response: str
    thinking: str | None = None
    context: list[int] | None = None
    """Tokens of the prompt and the answer, with the last object; not with `raw` or `suffix`."""


@dataclass(slots=True)
class _Piece:
    """Something of an answer, or all of it."""

    content: str = ""
    thinking: str = ""
    calls: list[CallOfTool] = field(default_factory=list)

    def add(self, other: _Piece) -> None:
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls)


_Say = Callable[[_Piece, dict[str, Any]], Progress]


def _as_chat(piece: _Piece, more: dict[str, Any]) -> ChatProgress:
    message = Spoken(role="assistant", content=piece.content)
    if piece.thinking:
        message.thinking = piece.thinking
    if piece.calls:
        message.tool_calls = piece.calls
    return ChatProgress(message=message, **more)


def _as_text(piece: _Piece, more: dict[str, Any]) -> TextProgress:
    found = TextProgress(response=piece.content, **more)
    if piece.thinking:
        found.thinking = piece.thinking
    return found


@ROUTER.post("/chat", summary="Answer a conversation (Ollama's API)", response_model=ChatProgress, responses=LINES)
async def chat(request: Request, body: OllamaChat) -> Response:
    """The assistant's next turn."""
    service: Service = request.app.state.service
    reply = Reply(body, await named(service, body.model), _as_chat)
    if not body.messages:
        return await _loaded(service, reply)
    fields = body.fields()
    lease = await service.lease(reply.name)
    reply.has_model()
    return await _answered(request, reply, await Exchange.begin(service, fields, lease))


@ROUTER.post("/generate", summary="Answer a prompt (Ollama's API)", response_model=TextProgress, responses=LINES)
async def generate(request: Request, body: OllamaGenerate) -> Response:
    """An answer to one message; with `raw` or `suffix`, and by a model without a chat template, a text goes on."""
    service: Service = request.app.state.service
    body.check()
    reply = _TextReply(body, await named(service, body.model), _as_text)
    if not body.prompt and not body.suffix:
        return await _loaded(service, reply)
    lease = await service.lease(reply.name)
    reply.has_model()
    has_template = lease.engine.template.exists
    if body.system and not has_template:
        lease.release()
        raise invalid("This model has no chat template, so there is no place for system.", "system")
    if body.raw or body.suffix or not has_template:
        text = await prepared(lease, partial(_text, body))
        return await _answered(request, reply, await Continuation.begin(service, text, lease))
    conversation, said = await prepared(lease, partial(_conversation, body))
    return await _answered(request, reply, await Exchange.begin(service, conversation, lease, said))


def _conversation(body: OllamaGenerate, engine: Engine) -> tuple[ChatFields, Tokens]:
    """What is asked, and the tokens it goes on from."""
    model = engine.loaded.model
    said = known_tokens(body.context or (), model, "context")
    check_length(said, engine, "context")
    return body.fields(model.detokenize(said, special=True)), said


def _text(body: OllamaGenerate, engine: Engine) -> CompletionFields:
    """The same where no chat template is used."""
    if not body.context:
        return body.text_fields(body.prompt)
    check_length(known_tokens(body.context, engine.loaded.model, "context"), engine, "context")
    return body.text_fields(joined(engine, [*body.context, body.prompt], "prompt", special=True))


async def _loaded(service: Service, reply: Reply) -> Response:
    """Nothing is asked: the model is loaded, or its memory is freed."""
    if reply.body.frees:
        await free(service, reply.name)
        return json_response(reply.said(_Piece(), done_reason="unload"))
    (await service.lease(reply.name)).release()
    return json_response(reply.said(_Piece(), done_reason="load"))


async def _answered(request: Request, reply: Reply, exchange: Answering) -> Response:
    service: Service = request.app.state.service
    if reply.body.stream:
        lines = reply.lines(exchange, service.settings.ping_seconds)
        response: Response = EventStream(exchange.answers, lines, NDJSON)
    else:
        response = await whole(request, exchange.answers, lambda: reply.whole(exchange))
    if reply.body.frees:
        response.background = BackgroundTask(free, service, reply.name)
    return response


class Reply:
    """One answer, told as a route tells it."""

    def __init__(self, body: Wanted, name: str, say: _Say) -> None:
        """
        Args:
            body: of the request.
            name: what its model is called here.
            say: makes an object of the route.
        """
        self.body, self.name = body, name
        self._say = say
        self._begun = self._has_model = perf_counter()
        self._calls = 0
        self._arguments: list[str] = []
        """Of the call that is open."""
        self._open: CallBegun | None = None

    def has_model(self) -> None:
        """The model is in memory now."""
        self._has_model = perf_counter()

    async def lines(self, exchange: Answering, silence: float) -> AsyncIterator[str]:
        """What comes as it comes, an object a line; one that says nothing after `silence` seconds without news."""
        try:
            async for parts in exchange.parts(silence):
                piece, scores = self._taken(parts or ()), self._scores(exchange)
                if parts is None or piece or scores:
                    yield _line(self.said(piece, **scores))
            yield _line(self.said(_Piece(), **self._end(exchange)))
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            yield f"{compact(error_body(told(error)))}\n"
        exchange.answers.close()

    async def whole(self, exchange: Answering) -> Response:
        """The whole answer, once it is there."""
        piece = _Piece()
        async for parts in exchange.parts():
            piece.add(self._taken(parts or ()))
        return json_response(self.said(piece, **self._scores(exchange), **self._end(exchange)))

    def said(self, piece: _Piece, **more: Any) -> Progress:
        """An object; the last one if it has a `done_reason`."""
        head = {"model": self.body.model or self.name, "created_at": stamp(time()), "done": "done_reason" in more}
        return self._say(piece, head | more)

    def _taken(self, parts: Sequence[Part]) -> _Piece:
        """What parts of an answer bring. A call comes when it is whole, and not if the limit cuts it."""
        piece = _Piece()
        for part in parts:
            if isinstance(part, Content):
                piece.content += part.text
            elif isinstance(part, Reasoning):
                piece.thinking += part.text
            elif isinstance(part, CallBegun):
                self._open, self._arguments = part, []
            elif isinstance(part, CallArguments):
                self._arguments.append(part.text)
            elif self._open is not None and part.whole:
                arguments = arguments_of("".join(self._arguments))
                function = Called(index=self._calls, name=self._open.name, arguments=arguments)
                piece.calls.append(CallOfTool(id=self._open.id, function=function))
                self._calls += 1
        return piece

    def _scores(self, exchange: Answering) -> dict[str, Any]:
        """Log-probabilities that were asked for and came since the last call."""
        found = exchange.new_log_probs() if self.body.logprobs else []
        return {"logprobs": chat_log_probs(found, exchange.engine.loaded.model).content} if found else {}

    def _end(self, exchange: Answering) -> dict[str, Any]:
        stats = exchange.generation.stats
        return {
            "done_reason": "length" if exchange.finish == "length" else "stop",
            "total_duration": _nanoseconds(perf_counter() - self._begun),
            "load_duration": _nanoseconds(self._has_model - self._begun),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_seconds),
            "eval_count": stats.generated,
            "eval_duration": _nanoseconds(stats.decode_seconds),
        }


class _TextReply(Reply):
    """That of /api/generate, which says what the next prompt may go on from."""

    body: OllamaGenerate

    def _end(self, exchange: Answering) -> dict[str, Any]:
        alone = self.body.raw or self.body.suffix
        return super()._end(exchange) | ({} if alone else {"context": _context(exchange)})


def _context(exchange: Answering) -> list[int]:
    """Tokens of the prompt and the answer, without what ended it."""
    generation, model = exchange.generation, exchange.engine.loaded.model
    said, stop = list(generation.tokens), exchange.stop_string()
    if stop is not None:
        text = model.detokenize(said, special=True)
        said = model.tokenize(text[: text.rfind(stop)], special=True, add_bos=False).tolist()
    while said and said[-1] in model.end_tokens:
        said.pop()
    return [*generation.request.prompt.tolist(), *said]


def _line(body: BaseModel) -> str:
    return f"{body.model_dump_json(exclude_unset=True)}\n"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
