"""/api/chat and /api/generate: Ollama's ways to ask for an answer, streamed as a JSON object a line, or whole.

/api/embed and /api/embeddings: texts as vectors, in Ollama's shapes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.responses import Response
from typing_extensions import NotRequired, TypedDict

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.server.chat.answers import arguments_of
from localspec.server.chat.chat import Exchange
from localspec.server.chat.chat_fields import ChatFields, CompletionFields
from localspec.server.chat.fields import Json, Unused
from localspec.server.chat.prepare import check_length, known_tokens, prepared
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import TokenLogProbs, chat_log_probs
from localspec.server.extras.embeddings import MOST_INPUTS, joined, shortened, tokens_of, vectors
from localspec.server.http.errors import invalid
from localspec.server.http.reading import ModelRoute
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
    options: Unused = None


class OllamaEmbeddings(KeptAlive):
    """POST /api/embeddings, the older route."""

    prompt: str = Field(default="", description="The text; none = only load the model.")
    options: Unused = None


class Embedded(TypedDict):
    """Vectors of length 1, in the order of the texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int  # nanoseconds
    load_duration: int
    prompt_eval_count: int  # tokens of all texts


class Vector(TypedDict):
    """One vector of length 1."""

    embedding: list[float]


@ROUTER.post("/embed", summary="Embed texts (Ollama's API)")
async def embed(request: Request, body: OllamaEmbed) -> Embedded:
    """The same vectors as /v1/embeddings."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    begun = perf_counter()
    found, count, loaded = await _vectors(request, body, [text for text in texts if text], cut=body.truncate)
    return {
        "model": body.model or request.app.state.service.pool.default,
        "embeddings": [shortened(vector, body.dimensions or None).tolist() for vector in found],
        "total_duration": _nanoseconds(perf_counter() - begun),
        "load_duration": _nanoseconds(loaded - begun),
        "prompt_eval_count": count,
    }


@ROUTER.post("/embeddings", summary="Embed a text (Ollama's older API)")
async def embeddings(request: Request, body: OllamaEmbeddings) -> Vector:
    """One vector."""
    found, _, _ = await _vectors(request, body, [body.prompt] if body.prompt else [], cut=True)
    return {"embedding": found[0].tolist() if found else []}


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


class Called(TypedDict):
    """A function and what it is given."""

    index: int
    name: str
    arguments: Json


class CallOfTool(TypedDict):
    """A call the model asks for."""

    id: str
    function: Called


class Spoken(TypedDict):
    """What is new of the assistant's message; all of it if the answer comes whole."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[CallOfTool]]


class Progress(TypedDict):
    """What every object says; the durations, in nanoseconds, and the counts come with the last."""

    model: str  # as the request named it
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load", "unload"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]  # until the model was in memory
    prompt_eval_count: NotRequired[int]  # tokens of the prompt, cached ones too
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]  # tokens of the answer
    eval_duration: NotRequired[int]
    logprobs: NotRequired[list[TokenLogProbs]]


class ChatProgress(Progress):
    """An object of /api/chat."""

    message: Spoken


class TextProgress(Progress):
    """An object of /api/generate."""

    response: str
    thinking: NotRequired[str]
    context: NotRequired[list[int]]
    # tokens of the prompt and the answer, with the last object; not with `raw` or `suffix`


@ROUTER.post("/chat", summary="Answer a conversation (Ollama's API)", response_model=ChatProgress, responses=LINES)
async def chat(request: Request, body: OllamaChat) -> Response:
    """The assistant's next turn."""
    service: Service = request.app.state.service
    reply = OllamaReply(body, await named(service, body.model))
    if not body.messages:
        return await _loaded(service, reply)
    fields = body.fields()
    lease = await service.lease(reply.name)
    reply.has_model()
    return await _answered(request, reply, await Exchange.chat(service, fields, lease))


@ROUTER.post("/generate", summary="Answer a prompt (Ollama's API)", response_model=TextProgress, responses=LINES)
async def generate(request: Request, body: OllamaGenerate) -> Response:
    """An answer to one message; with `raw` or `suffix`, and by a model without a chat template, a text goes on."""
    service: Service = request.app.state.service
    body.check()
    reply = GeneratedReply(body, await named(service, body.model))
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
        return await _answered(request, reply, await Exchange.text(service, text, lease))
    conversation, said = await prepared(lease, partial(_conversation, body))
    return await _answered(request, reply, await Exchange.chat(service, conversation, lease, said))


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


async def _loaded(service: Service, reply: OllamaReply) -> Response:
    """Nothing is asked: the model is loaded, or its memory is freed."""
    if reply.body.frees:
        await free(service, reply.name)
        return json_response(reply.said(reply.spoken(()), done_reason="unload"))
    (await service.lease(reply.name)).release()
    return json_response(reply.said(reply.spoken(()), done_reason="load"))


async def _answered(request: Request, reply: OllamaReply, exchange: Exchange) -> Response:
    service: Service = request.app.state.service
    if reply.body.stream:
        lines = reply.lines(exchange, service.settings.ping_seconds)
        response: Response = EventStream(exchange.answers, lines, NDJSON)
    else:
        response = await whole(request, exchange.answers, lambda: reply.whole(exchange))
    if reply.body.frees:
        response.background = BackgroundTask(free, service, reply.name)
    return response


class OllamaReply:
    """One answer as /api/chat tells it."""

    def __init__(self, body: Wanted, name: str) -> None:
        """`name`: what the model of the request is called here."""
        self.body, self.name = body, name
        self._begun = self._has_model = perf_counter()
        self._calls = 0
        self._open: CallBegun | None = None
        self._arguments = ""  # of the call that is open

    def has_model(self) -> None:
        """The model is in memory now."""
        self._has_model = perf_counter()

    async def lines(self, exchange: Exchange, silence: float) -> AsyncIterator[str]:
        """What comes as it comes, an object a line; one that says nothing after `silence` seconds without news."""
        try:
            async for news in exchange.news(silence):
                message, scores = self.spoken(news.parts if news else ()), self._scores(exchange) if news else {}
                if news is None or message["content"] or len(message) > 2 or scores:
                    yield f"{compact(self.said(message, **scores))}\n"
            yield f"{compact(self.said(self.spoken(()), **self._end(exchange)))}\n"
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            yield f"{compact(error_body(told(error)))}\n"
        exchange.answers.close()

    async def whole(self, exchange: Exchange) -> Response:
        """The whole answer, once it is there."""
        parts = [part async for news in exchange.news() if news for part in news.parts]
        return json_response(self.said(self.spoken(parts), **self._scores(exchange), **self._end(exchange)))

    def said(self, message: Spoken, **more: Any) -> Json:
        """An object; the last one if it has a `done_reason`."""
        head = {"model": self.body.model or self.name, "created_at": stamp(time()), "done": "done_reason" in more}
        return head | self._body_of(message) | more

    def _body_of(self, message: Spoken) -> Json:
        return {"message": message}

    def spoken(self, parts: Sequence[Part]) -> Spoken:
        """What parts of an answer bring. A call comes when it is whole, and not if the limit cuts it."""
        message: Spoken = {"role": "assistant", "content": ""}
        for part in parts:
            if isinstance(part, Content):
                message["content"] += part.text
            elif isinstance(part, Reasoning):
                message["thinking"] = message.get("thinking", "") + part.text
            elif isinstance(part, CallBegun):
                self._open, self._arguments = part, ""
            elif isinstance(part, CallArguments):
                self._arguments += part.text
            elif self._open is not None and part.whole:
                called: Called = {
                    "index": self._calls,
                    "name": self._open.name,
                    "arguments": arguments_of(self._arguments),
                }
                message.setdefault("tool_calls", []).append({"id": self._open.id, "function": called})
                self._calls += 1
        return message

    def _scores(self, exchange: Exchange) -> Json:
        """Log-probabilities that were asked for and came since the last call."""
        found = exchange.choices[0].new_log_probs() if self.body.logprobs else []
        return {"logprobs": chat_log_probs(found, exchange.model)} if found else {}

    def _end(self, exchange: Exchange) -> Json:
        answer = exchange.choices[0]
        stats = answer.generation.stats
        return {
            "done_reason": "length" if answer.finish == "length" else "stop",
            "total_duration": _nanoseconds(perf_counter() - self._begun),
            "load_duration": _nanoseconds(self._has_model - self._begun),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_seconds),
            "eval_count": stats.generated,
            "eval_duration": _nanoseconds(stats.decode_seconds),
        }


class GeneratedReply(OllamaReply):
    """One answer as /api/generate tells it, with what the next prompt may go on from."""

    body: OllamaGenerate

    def _body_of(self, message: Spoken) -> Json:
        thought = {"thinking": message["thinking"]} if "thinking" in message else {}
        return {"response": message["content"]} | thought

    def _end(self, exchange: Exchange) -> Json:
        alone = self.body.raw or self.body.suffix
        return super()._end(exchange) | ({} if alone else {"context": _context(exchange)})


def _context(exchange: Exchange) -> list[int]:
    """Tokens of the prompt and the answer, without what ended it."""
    generation, model = exchange.choices[0].generation, exchange.model
    said, stop = list(generation.tokens), exchange.stop_string()
    if stop is not None:
        text = model.detokenize(said, special=True)
        said = model.tokenize(text[: text.rfind(stop)], special=True, add_bos=False).tolist()
    while said and said[-1] in model.end_tokens:
        said.pop()
    return [*generation.request.prompt.tolist(), *said]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
