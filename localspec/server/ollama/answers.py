"""/api/chat and /api/generate: Ollama's ways to ask for an answer, streamed as a JSON object a line, or whole.

/api/embed and /api/embeddings: texts as vectors, in Ollama's shapes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from time import perf_counter, time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field, field_validator
from pydantic_core import from_json
from starlette.background import BackgroundTask
from starlette.responses import Response
from typing_extensions import NotRequired, TypedDict

from localspec.chat.reply.harmony import apart
from localspec.chat.reply.reply import Part
from localspec.chat.reply.tool import WholeCalls
from localspec.server.chat.answers import TokenLogProbs, arguments_of, chat_log_probs
from localspec.server.chat.chat import Exchange
from localspec.server.chat.fields import (
    LONG_TOKEN,
    MOST_ITEMS,
    MOST_STOPS,
    MOST_TOOLS,
    MOST_TOP,
    Body,
    ChatFields,
    CompletionFields,
    Json,
    SamplingFields,
    Speculative,
    ToolField,
    Unused,
    about,
)
from localspec.server.chat.prepare import check_length, known_tokens, prepared
from localspec.server.chat.service import Service
from localspec.server.extras.embeddings import MOST_INPUTS, joined, shortened, tokens_of, vectors
from localspec.server.http.output import LINES, invalid, json_response, respond
from localspec.server.http.reading import ModelRoute, Served
from localspec.server.ollama.models import REFUSED, STREAMED, KeptAlive, free, named, stamp
from localspec.types import Tokens

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

_AtStart = Annotated[Any, Field(description="Accepted and not used: `localspec serve` was told when it started.")]


class OllamaOptions(SamplingFields):
    """How an answer is drawn and limited; what is left out has llama.cpp's default."""

    ignored_switches: ClassVar[frozenset[str]] = frozenset({"mirostat", "tfs_z"})  # as Ollama has them now
    num_predict: int | None = about("Most new tokens; 0 or less = until the model ends.")
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    num_ctx: int | None = None
    """Accepted and not used: the context is that of `serve --context`; `/api/ps` tells it."""
    num_keep: Any = about("Accepted and not used: a prompt that does not fit is refused.")
    num_batch: _AtStart = None
    num_gpu: _AtStart = None
    main_gpu: _AtStart = None
    num_thread: _AtStart = None
    use_mmap: _AtStart = None
    use_mlock: _AtStart = None


class OllamaFunction(Body):
    name: str
    arguments: Json = Field(default_factory=dict)
    index: Unused = None

    @field_validator("arguments", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        """As OpenAI's clients have them: JSON text."""
        try:
            return from_json(value) if isinstance(value, str) else value
        except ValueError:
            return value


class OllamaCall(Body):
    id: str | None = None
    type: Unused = None
    function: OllamaFunction


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = about("What the assistant thought.")
    tool_calls: Annotated[list[OllamaCall], Field(max_length=MOST_TOOLS)] | None = None
    tool_name: str | None = about("The tool whose result this is.")
    tool_call_id: str | None = about("The call whose result this is; left out: the first without one.")


class OllamaTool(ToolField):
    type: Literal["function"] = "function"


class Wanted(KeptAlive):
    """What both routes that answer take."""

    stream: bool = True
    format: Literal["", "json"] | Json | None = about("`json`, or a JSON schema that the answer has.")
    options: OllamaOptions | None = None
    think: bool | str | None = about("Whether to think, or how hard: low, medium, high.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    truncate: Any = about("Accepted and not used: a prompt that does not fit is refused.")
    shift: Any = about("Accepted and not used: an answer ends where the context is full.")
    speculative: Speculative | None = None

    def drawn(self) -> Json:
        """How to answer, as fields of the APIs of OpenAI's kind."""
        options = self.options or OllamaOptions()
        limit = options.num_predict
        found = options.drawn() | {"stop": options.stop, "speculative": self.speculative}
        found["max_tokens"] = -1 if limit is not None and limit <= 0 else limit
        if isinstance(self.format, dict):
            found["response_format"] = {"type": "json_schema", "json_schema": {"schema": self.format}}
        elif self.format == "json":
            found["response_format"] = {"type": "json_object"}
        return found

    def conversation(self, messages: Sequence[Json], **more: Any) -> ChatFields:
        """A body of the chat API."""
        scored = {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs if self.logprobs else None}
        own = {"messages": messages, "reasoning": self.think}
        return ChatFields.model_validate({**own, **self.drawn(), **scored, **more})


class OllamaChat(Wanted):
    messages: Annotated[list[OllamaMessage], Field(max_length=MOST_ITEMS)] = Field(
        default_factory=list, description="The conversation; none = only load the model."
    )
    tools: Annotated[list[OllamaTool], Field(max_length=MOST_TOOLS)] | None = None

    def fields(self) -> ChatFields:
        """The same as a body of the chat API. Ollama's calls may have no ids: results then go with the calls in their
        order."""
        found, waiting = list[Json](), list[Json]()
        for number, message in enumerate(self.messages):
            calls: list[Json] = []
            for index, call in enumerate(message.tool_calls or ()):
                arguments = json.dumps(call.function.arguments, ensure_ascii=False)
                function = {"name": call.function.name, "arguments": arguments}
                calls.append({"id": call.id or f"call_{number}_{index}", "function": function})
            waiting += calls
            answered = message.tool_call_id
            if message.role == "tool" and answered is None:
                of_name = (one for one in waiting if one["function"]["name"] == message.tool_name)
                first = next(of_name, waiting[0] if waiting else None)
                answered = None if first is None else first["id"]
            waiting = [one for one in waiting if one["id"] != answered]
            turn = message.model_dump(include={"role", "content"})
            turn |= {"reasoning_content": message.thinking, "tool_calls": calls or None}
            found.append(turn | {"name": message.tool_name, "tool_call_id": answered})
        return self.conversation(found, tools=self.tools)


class OllamaGenerate(Wanted):
    prompt: str = about("What is asked; none = only load the model.", default="")
    suffix: str | None = about("Text after the gap that the answer fills.")
    system: str | None = about("A system message.")
    raw: bool = about("The prompt goes to the model as it is, without its chat template.", default=False)
    template: str | None = about("Refused: the model's own chat template is used.")
    context: list[int] | None = about("Tokens that the prompt goes on from: `context` of an earlier answer.")

    @property
    def alone(self) -> bool:
        """Whether the prompt stands for itself, in no conversation."""
        return bool(self.raw or self.suffix)

    def check(self) -> None:
        """ApiError 400: a field that would change the answer, or fields that exclude each other."""
        if self.template:
            raise invalid("template is not supported: the model's own chat template is used.", "template")
        if self.context and self.alone:
            raise invalid("raw and suffix take the prompt alone, so there is no place for context.", "context")
        if self.system and self.alone:
            raise invalid("raw and suffix use no chat template, so there is no place for system.", "system")

    def fields(self, engine: Engine) -> tuple[ChatFields, Tokens]:
        """The same as a body of the chat API, and the tokens it goes on from; a system message that they say is not
        said again."""
        before = self._before(engine)
        said = engine.loaded.model.detokenize(before, special=True)
        system = [{"role": "system", "content": self.system}] if self.system and self.system not in said else []
        return self.conversation([*system, {"role": "user", "content": self.prompt}]), before

    def text_fields(self, engine: Engine) -> CompletionFields:
        """The same as a body of the completion API, where no chat template is used."""
        if self.system:  # `check` has let it through, so that it is for want of one
            raise invalid("This model has no chat template, so there is no place for system.", "system")
        prompt: str | list[int] = self.prompt
        if len(self._before(engine)):
            prompt = joined(engine, [*(self.context or ()), self.prompt], "prompt", special=True)
        scores = (self.top_logprobs or 0) if self.logprobs else None
        own = {"prompt": prompt, "suffix": self.suffix or None, "logprobs": scores}
        return CompletionFields.model_validate(own | self.drawn())

    def _before(self, engine: Engine) -> Tokens:
        found = known_tokens(self.context or (), engine.loaded.model, "context")
        check_length(found, engine, "context")
        return found


ROUTER = APIRouter(prefix="/api", tags=["ollama"], route_class=ModelRoute, responses=REFUSED)


class OllamaEmbed(KeptAlive):
    input: str | Annotated[list[str], Field(max_length=MOST_INPUTS)] = Field(
        default_factory=list, description="A text or several; none = only load the model."
    )
    truncate: bool = about("Cut a text that does not fit the context; else it is refused.", default=True)
    dimensions: int | None = about("So many numbers of each vector; 0 = all.", ge=0)
    options: Unused = None


class OllamaEmbeddings(KeptAlive):
    """POST /api/embeddings, the older route."""

    prompt: str = about("The text; none = only load the model.", default="")
    options: Unused = None


class Embedded(TypedDict):
    """Vectors of length 1, in the order of the texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int  # nanoseconds
    load_duration: int
    prompt_eval_count: int  # tokens of all texts


class Vector(TypedDict):
    embedding: list[float]


@ROUTER.post("/embed", summary="Embed texts (Ollama's API)")
async def embed(request: Request, service: Served, body: OllamaEmbed) -> Embedded:
    """The same vectors as /v1/embeddings."""
    texts = [text for text in ([body.input] if isinstance(body.input, str) else body.input) if text]
    begun = perf_counter()
    name = await named(service, body.model)
    lease = await service.lease(name)
    loaded = perf_counter()

    def tokens(engine: Engine) -> list[Tokens]:
        limit = engine.loaded.context.n_ctx
        if not body.truncate:
            return tokens_of(engine, texts)
        return [tokens_of(engine, [text[: limit * LONG_TOKEN]], limit)[0] for text in texts]

    if texts:
        found, count = await vectors(request, service, lease, tokens)
    else:
        found, count = [], 0
        lease.release()
    if body.frees:
        await free(service, name)
    return {
        "model": body.model or service.pool.default,
        "embeddings": [shortened(vector, body.dimensions or None).tolist() for vector in found],
        "total_duration": _nanoseconds(perf_counter() - begun),
        "load_duration": _nanoseconds(loaded - begun),
        "prompt_eval_count": count,
    }


@ROUTER.post("/embeddings", summary="Embed a text (Ollama's older API)")
async def embeddings(request: Request, service: Served, body: OllamaEmbeddings) -> Vector:
    """One vector."""
    texts = [body.prompt] if body.prompt else []
    found = await embed(request, service, OllamaEmbed(model=body.model, keep_alive=body.keep_alive, input=texts))
    return {"embedding": found["embeddings"][0] if texts else []}


class Called(TypedDict):
    index: int
    name: str
    arguments: Json


class CallOfTool(TypedDict):
    id: str
    function: Called


class Spoken(TypedDict):
    """What is new of the assistant's message; all of it if the answer comes whole."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[CallOfTool]]


class OllamaProgress(TypedDict):
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


class ChatProgress(OllamaProgress):
    message: Spoken


class TextProgress(OllamaProgress):
    response: str
    thinking: NotRequired[str]
    context: NotRequired[list[int]]
    # tokens of the prompt and the answer, with the last object; not with `raw` or `suffix`


@ROUTER.post("/chat", summary="Answer a conversation (Ollama's API)", response_model=ChatProgress, responses=STREAMED)
async def chat(request: Request, service: Served, body: OllamaChat) -> Response:
    """The assistant's next turn."""
    reply = OllamaReply(body, await named(service, body.model))
    if not body.messages:
        return await _loaded(service, reply)
    fields = body.fields()
    lease = await service.lease(reply.name)
    reply.loaded = perf_counter()
    return await _answered(request, reply, await Exchange.chat(service, fields, lease))


@ROUTER.post("/generate", summary="Answer a prompt (Ollama's API)", response_model=TextProgress, responses=STREAMED)
async def generate(request: Request, service: Served, body: OllamaGenerate) -> Response:
    """An answer to one message; with `raw` or `suffix`, and by a model without a chat template, a text goes on."""
    body.check()
    reply = OllamaReply(body, await named(service, body.model))
    if not body.prompt and not body.suffix:
        return await _loaded(service, reply)
    lease = await service.lease(reply.name)
    reply.loaded = perf_counter()
    if body.alone or not lease.engine.template.exists:
        text = await prepared(lease, body.text_fields)
        return await _answered(request, reply, await Exchange.text(service, text, lease))
    conversation, said = await prepared(lease, body.fields)
    return await _answered(request, reply, await Exchange.chat(service, conversation, lease, said))


async def _loaded(service: Service, reply: OllamaReply) -> Response:
    """Nothing is asked: the model is loaded, or its memory is freed."""
    if reply.body.frees:
        await free(service, reply.name)
    else:
        (await service.lease(reply.name)).release()
    return json_response(reply.said(reply.spoken(()), done_reason="unload" if reply.body.frees else "load"))


async def _answered(request: Request, reply: OllamaReply, exchange: Exchange) -> Response:
    reply.exchange = exchange
    response = await respond(request, exchange.answers, reply, reply.body.stream, LINES)
    if reply.body.frees:
        response.background = BackgroundTask(free, request.app.state.service, reply.name)
    return response


class OllamaReply:
    """One answer as /api/chat tells it, or as /api/generate does, with what the next prompt may go on from."""

    exchange: Exchange
    """Set when the answer has begun."""

    def __init__(self, body: Wanted, name: str) -> None:
        """`name`: what the model of the request is called here."""
        self.body, self.name = body, name
        self._begun = self.loaded = perf_counter()  # when it began, and when the model was in memory
        self._calls, self._called = WholeCalls(), 0

    async def chunks(self, silence: float) -> AsyncIterator[Json]:
        """What comes as it comes; an object that says nothing after `silence` seconds without news."""
        try:
            async for news in self.exchange.news(silence):
                message, scores = self.spoken(news.parts if news else ()), self._scores() if news else {}
                if news is None or message["content"] or len(message) > 2 or scores:
                    yield self.said(message, **scores)
            yield self.said(self.spoken(()), **self._end())
        finally:
            self.exchange.answers.close()  # before the model is freed

    async def collected(self) -> Json:
        parts = [part async for news in self.exchange.news() if news for part in news.parts]
        return self.said(self.spoken(parts), **self._scores(), **self._end())

    def said(self, message: Spoken, **more: Any) -> Json:
        """An object; the last one if it has a `done_reason`."""
        head = {"model": self.body.model or self.name, "created_at": stamp(time()), "done": "done_reason" in more}
        if not isinstance(self.body, OllamaGenerate):
            return head | {"message": message} | more
        thought = {"thinking": message["thinking"]} if "thinking" in message else {}
        return head | {"response": message["content"]} | thought | more

    def spoken(self, parts: Sequence[Part]) -> Spoken:
        """What parts of an answer bring. A call comes when it is whole, and not if the limit cuts it."""
        text, thoughts = apart(parts)
        message: Spoken = {"role": "assistant", "content": text}
        if thoughts:
            message["thinking"] = thoughts
        for call in self._calls.take(parts):
            called: Called = {"index": self._called, "name": call.name, "arguments": arguments_of(call.arguments)}
            message.setdefault("tool_calls", []).append({"id": call.id, "function": called})
            self._called += 1
        return message

    def _scores(self) -> Json:
        """Log-probabilities that were asked for and came since the last call."""
        found = self.exchange.choices[0].new_log_probs() if self.body.logprobs else []
        return {"logprobs": chat_log_probs(found, self.exchange.model)} if found else {}

    def _end(self) -> Json:
        answer, body = self.exchange.choices[0], self.body
        stats = answer.generation.stats
        found: Json = {
            "done_reason": "length" if answer.finish == "length" else "stop",
            "total_duration": _nanoseconds(perf_counter() - self._begun),
            "load_duration": _nanoseconds(self.loaded - self._begun),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_seconds),
            "eval_count": stats.generated,
            "eval_duration": _nanoseconds(stats.decode_seconds),
        }
        if isinstance(body, OllamaGenerate) and not body.alone:
            found["context"] = self._context()
        return found

    def _context(self) -> list[int]:
        """Tokens of the prompt and the answer, without what ended it."""
        generation, model = self.exchange.choices[0].generation, self.exchange.model
        said, stop = list(generation.tokens), self.exchange.stop_string()
        if stop is not None:
            text = model.detokenize(said, special=True)
            said = model.tokenize(text[: text.rfind(stop)], special=True, add_bos=False).tolist()
        while said and said[-1] in model.end_tokens:
            said.pop()
        return [*generation.request.prompt.tolist(), *said]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
