"""llama-server's own routes: /completion, /infill, /embedding, /rerank, /lora-adapters, /tokenize, /detokenize,
/apply-template, and how long a chat prompt would be."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response
from typing_extensions import NotRequired, TypedDict

from localspec.engine.slot import Event, FinishReason
from localspec.server.chat.answers import (
    Extra,
    InputTokens,
    PromptProgress,
    Timings,
    TokenLogProbs,
    TopLogProb,
    chat_log_probs,
    extra,
    timings,
)
from localspec.server.chat.chat import STREAMED, Exchange
from localspec.server.chat.fields import (
    LONG_TOKEN,
    MOST_ITEMS,
    MOST_PROMPTS,
    MOST_TOP,
    Body,
    ChatFields,
    CompletionFields,
    GenerationFields,
    Json,
    Unused,
    about,
)
from localspec.server.chat.prepare import chat_turn, check_text, known_tokens, prepared, prompt_length, with_engine
from localspec.server.chat.service import Service
from localspec.server.extras.embeddings import Input, Inputs, Plain, joined, several, tokens_of, vectors
from localspec.server.http.output import LLAMA_SERVER, ApiError, invalid, respond
from localspec.server.http.reading import JsonRoute, ModelRoute, Served

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine


ROUTER = APIRouter(tags=["llama-server"], route_class=ModelRoute)
WITHOUT = APIRouter(tags=["llama-server"], route_class=JsonRoute)  # routes that need no model
_ANSWER = 128  # tokens that a gap is thought to need where the request does not say
_MISSING = object()


class _Drawn(CompletionFields):
    drawn_log_probs = True


class NativeFields(GenerationFields):
    """What /completion and /infill take."""

    n_probs: int | None = about("Log-probabilities of so many tokens.", ge=0, le=MOST_TOP)
    post_sampling_probs: bool | None = None
    """Probabilities that tokens were drawn by, instead: `prob` and `top_probs`."""
    return_tokens: bool | None = about("Say the tokens of the text, too.")
    t_max_predict_ms: int | None = None
    """Milliseconds after which an answer ends that has a line; 0 or less = no limit."""
    t_max_prompt_ms: Unused = None
    id_slot: Unused = None
    n_indent: Unused = None
    n_keep: Unused = None
    samplers: Any = about("Accepted and not used: samplers have one order here.")
    response_fields: Annotated[list[str], Field(max_length=MOST_ITEMS)] | None = None
    """Tell these alone of the last object, such as timings/prompt_n; [] = all."""
    return_progress: bool | None = about("A stream says how far the prompt is read.")

    def completion(self, prompt: str | list[int]) -> CompletionFields:
        """The same as a body of the completion API. A request for nothing gets one token, which is not told."""
        same = {name: getattr(self, name) for name in GenerationFields.model_fields}
        same["max_tokens"] = self.max_tokens or (1 if self.max_tokens == 0 else None)
        kind = _Drawn if self.post_sampling_probs else CompletionFields
        return kind.model_validate(same | {"prompt": prompt, "logprobs": self.n_probs or None})


class NativeCompletion(NativeFields):
    prompt: Input | Annotated[list[Input], Field(min_length=1, max_length=MOST_PROMPTS)]


class Chunk(Body):
    """A piece of another file."""

    text: str
    filename: str = "tmp"
    time: Unused = None


class Infill(NativeFields):
    input_prefix: str = about("Text before the gap.", default="")
    input_suffix: str = about("Text after the gap.", default="")
    input_extra: Annotated[list[Chunk], Field(max_length=MOST_ITEMS)] | None = about(
        "Pieces of other files, shown before."
    )
    prompt: str = about("How the text of the gap begins.", default="")


class TopProb(TypedDict):
    id: int
    token: str
    bytes: list[int]
    prob: float


class TokenProbs(TopProb):
    """An emitted token and what else might have been drawn."""

    top_probs: list[TopProb]


class NativeAnswer(TypedDict):
    """An answer, or a piece of it; the last one says how it went."""

    index: int
    content: str
    tokens: list[int]  # those of the text, if `return_tokens` asks for them
    id_slot: int
    stop: bool  # it is the last
    model: NotRequired[str]
    tokens_predicted: int
    tokens_evaluated: int  # of the prompt
    generation_settings: NotRequired[Json]
    prompt: NotRequired[str]
    has_new_line: NotRequired[bool]
    truncated: NotRequired[bool]  # the context was full
    stop_type: NotRequired[Literal["eos", "limit", "word"]]
    stopping_word: NotRequired[str]  # the stop string that ended it; "" = none
    tokens_cached: NotRequired[int]  # in the slot's cache
    timings: NotRequired[Timings]
    localspec: NotRequired[Extra]
    completion_probabilities: NotRequired[list[TokenLogProbs] | list[TokenProbs]]
    prompt_progress: NotRequired[PromptProgress]


Answers: TypeAlias = NativeAnswer | Json | list[NativeAnswer | Json]
"""One, or one for each of several prompts; what `response_fields` name of it, by these names."""


class NativeTexts(Body):
    """POST /embedding."""

    other_names: ClassVar[dict[str, str]] = {"input": "content"}
    model: str | None = about("Name of a model; left out: the default.")
    content: Inputs
    embd_normalize: Literal[2] | None = about("2 only: vectors have the length 1.")


class NativeVector(TypedDict):
    index: int
    embedding: list[list[float]]  # a list of one, of length 1


@ROUTER.post("/completion", summary="Continue a text (llama-server's API)", response_model=Answers, responses=STREAMED)
async def completion(request: Request, fields: NativeCompletion) -> Response:
    """One answer to each prompt: an object, or a list of them."""
    prompts = several(fields.prompt)
    if fields.stream and len(prompts) > 1:
        raise invalid("A stream takes one prompt.", "prompt", "invalid_value")

    def tokens(prompt: Plain, engine: Engine) -> str | list[int]:
        return prompt if isinstance(prompt, str) else joined(engine, prompt, "prompt", special=True)

    responses = [await _answered(request, fields, partial(tokens, one), index) for index, one in enumerate(prompts)]
    if len(prompts) == 1:
        return responses[0]
    bodies = b",".join(bytes(response.body) for response in responses)
    return Response(b"[" + bodies + b"]", media_type="application/json")


@ROUTER.post("/infill", summary="Fill a gap (llama-server's API)", response_model=Answers, responses=STREAMED)
async def infill(request: Request, fields: Infill) -> Response:
    """What goes between two texts, as editors ask for it."""
    return await _answered(request, fields, partial(gap, fields))


@ROUTER.post("/embedding", summary="Embed texts (llama-server's API)")
async def embedding(request: Request, service: Served, fields: NativeTexts) -> list[NativeVector]:
    """The vectors of /v1/embeddings."""
    texts = several(fields.content)
    lease = await service.lease(fields.model)
    found, _ = await vectors(request, service, lease, partial(tokens_of, texts=texts))
    return [{"index": index, "embedding": [vector.tolist()]} for index, vector in enumerate(found)]


@WITHOUT.post("/rerank", include_in_schema=False)
@WITHOUT.post("/reranking", include_in_schema=False)
@WITHOUT.post("/v1/rerank", include_in_schema=False)
@WITHOUT.post("/v1/reranking", include_in_schema=False)
async def rerank() -> None:
    """Always 501: models that rank are encoders, and localspec runs models that write token after token."""
    what = "This server does not rank texts: its models write token after token. Compare vectors of /v1/embeddings."
    raise ApiError(501, "not_supported_error", what)


@WITHOUT.get("/lora-adapters", summary="Adapters (llama-server's API)")
async def lora_adapters() -> list[dict[str, Any]]:
    """There are none: localspec loads no adapters."""
    return []


def gap(fields: Infill, engine: Engine) -> list[int]:
    """The prompt for what goes between two texts, in the order that llama-server has: other files, what is before the
    gap, what is after it, the mark of the middle. What does not fit the context is left out where it is farthest away.
    """
    model = engine.loaded.model
    if model.fill_in is None:
        raise invalid("This model has no tokens to fill in a gap with.", "input_suffix", "unsupported_model")
    before, after, middle = model.fill_in
    repository, file = model.fill_in_files
    room = max(16, engine.loaded.context.n_ctx - 2 * (fields.max_tokens or _ANSWER) - 8)
    most = room * LONG_TOKEN

    def spelled(text: str, *, end: bool = False) -> list[int]:
        """Tokens of a text's beginning, or of its end, of which there may be `room`."""
        near = text[-most:] if end else text[:most]
        return [int(token) for token in model.tokenize(near, special=False, add_bos=False)]

    prompt = spelled(fields.prompt)[-room // 4 :]
    suffix = spelled(fields.input_suffix)[: max(0, room // 4 - len(prompt))]
    prefix = spelled(fields.input_prefix, end=True)[-(3 * room // 4) :] if fields.input_prefix else []
    extra = [] if repository is None else [repository, *spelled("myproject\n")]
    for chunk in fields.input_extra or ():
        if file is not None:
            extra += [file, *spelled(f"{chunk.filename}\n")]
        extra += spelled(chunk.text)
    if file is not None:
        extra += [file, *spelled("filename\n")]
    left = room - len(prefix) - len(suffix) - len(prompt)
    extra = extra[max(0, len(extra) - left) :] if left > 0 else []
    start = [model.bos] if model.add_bos and model.bos is not None else []
    return [*extra, *start, before, *prefix, *prompt, after, *suffix, middle]


async def _answered(
    request: Request, fields: NativeFields, prompt: Callable[[Engine], str | list[int]], index: int = 0
) -> Response:
    """`prompt` makes the text or its tokens, on a worker thread."""
    if fields.choices > 1:
        raise invalid("n is more than 1; this route gives one answer. /v1/completions gives several.", "n")
    service: Service = request.app.state.service
    lease = await service.lease(fields.model)
    asked = await prepared(lease, lambda engine: fields.completion(prompt(engine)))
    exchange = await Exchange.text(service, asked, lease)
    reply = NativeReply(fields, exchange, index)
    return await respond(request, exchange.answers, reply, fields.stream, LLAMA_SERVER)


class NativeReply:
    """One answer in llama-server's shape."""

    def __init__(self, fields: NativeFields, exchange: Exchange, index: int) -> None:
        self._fields, self._exchange, self._index = fields, exchange, index
        self._answer, self._generation = exchange.choices[0], exchange.choices[0].generation
        self._said, self._tokens = "", list[int]()
        self._begun = 0.0  # when the first token came

    async def chunks(self, silence: float) -> AsyncIterator[Json | None]:
        """Pieces as they come, and the last."""
        async for news in self._exchange.stream(silence, self._fields.return_progress):
            if news is None:
                yield None
            elif isinstance(news, PromptProgress):
                yield self._piece("", ()) | {"prompt_progress": news}
            elif self._take(news.event):
                timed = {"timings": timings(news.event.stats)} if self._fields.timings_per_token else {}
                yield self._piece(news.event.text, news.event.tokens) | timed
        yield self._last("", ())

    async def collected(self) -> Json:
        async for news in self._exchange.news():
            if news is not None:
                self._take(news.event)
        return self._last(self._said, self._tokens)

    def _take(self, event: Event) -> bool:
        """Reads an event; whether it brings something to tell."""
        if self._fields.max_tokens == 0:
            return False
        self._begun = self._begun or perf_counter()
        self._said += event.text
        self._tokens += event.tokens
        limit = self._fields.t_max_predict_ms or 0
        if 0 < limit < (perf_counter() - self._begun) * 1e3 and "\n" in self._said:
            self._generation.cancel()
        return bool(event.text)

    def _piece(self, text: str, tokens: Sequence[int]) -> Json:
        stats = self._generation.stats
        piece = {
            "index": self._index,
            "content": text,
            "tokens": list(tokens) if self._fields.return_tokens or self._fields.stream else [],
            "id_slot": 0,
            "stop": False,
            "tokens_predicted": 0 if self._fields.max_tokens == 0 else stats.generated,
            "tokens_evaluated": stats.prompt_tokens,
        }
        found = self._answer.new_log_probs()
        if self._fields.n_probs and found:
            scores = chat_log_probs(found, self._exchange.model)
            drawn = self._fields.post_sampling_probs
            piece["completion_probabilities"] = [_drawn(one) for one in scores] if drawn else scores
        return piece

    def _last(self, text: str, tokens: Sequence[int]) -> Json:
        generation, word = self._generation, self._exchange.stop_string()
        request, stats, ended = generation.request, generation.stats, generation.finish is FinishReason.STOP
        banned = sorted(self._exchange.model.end_tokens) if request.ignore_end else ()
        biases = [*request.sampling.logit_bias, *((token, -math.inf) for token in banned)]
        answer = self._piece(text, tokens) | {
            "stop": True,
            "model": self._exchange.name,
            "generation_settings": {
                **{name: getattr(request.sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")},
                "seed": request.seed,
                "n_predict": -1 if self._fields.max_tokens is None else self._fields.max_tokens,
                "stop": list(request.stop),
                "ignore_eos": request.ignore_end,
                "logit_bias": [
                    {"token": token, "bias": None if value == -math.inf else value} for token, value in biases
                ],  # what is added to logits; a token whose bias is null is banned
            },
            "prompt": self._exchange.model.detokenize(request.prompt, special=True),
            "has_new_line": "\n" in self._said,
            "truncated": generation.finish is FinishReason.CONTEXT,
            "stop_type": "word" if word is not None else "eos" if ended else "limit",
            "stopping_word": word or "",
            "tokens_cached": stats.prompt_tokens + stats.generated,
            "timings": timings(stats),
            "localspec": extra(self._exchange.engine, generation),
        }
        return _picked(answer, self._fields.response_fields) if self._fields.response_fields else answer


def _picked(answer: Json, names: list[str]) -> Json:
    """What `response_fields` name of an answer, by these names."""
    found = {}
    for name in names:
        value: Any = answer
        for step in name.split("/"):
            value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            found[name] = value
    return found


def _drawn(one: TokenLogProbs) -> TokenProbs:
    return {**_prob(one), "top_probs": [_prob(other) for other in one["top_logprobs"]]}


def _prob(one: TopLogProb) -> TopProb:
    """The probability of a log-probability."""
    return {"id": one["id"], "token": one["token"], "bytes": one["bytes"], "prob": math.exp(one["logprob"])}


TEXT = APIRouter(tags=["text"], route_class=ModelRoute)
MOST_TOKENS = 1 << 13
"""Tokens that a text may have at least for /tokenize, which takes longer ones than the context holds."""


class TokenizeFields(Body):
    model: str | None = None
    content: str
    add_special: bool = about("Begin with the begin-of-sequence token, if the model wants one.", default=False)
    parse_special: bool = about("Read the text of special tokens as those tokens.", default=True)
    with_pieces: bool = about("Say what each token stands for.", default=False)


class TokenPiece(BaseModel):
    id: int
    piece: str | list[int]  # text, or bytes that are no whole characters


class Tokenized(BaseModel):
    tokens: list[int] | list[TokenPiece]


class DetokenizeFields(Body):
    model: str | None = None
    tokens: list[int]


class Detokenized(BaseModel):
    content: str


class Templated(BaseModel):
    prompt: str


@TEXT.post("/tokenize", summary="Text to tokens")
async def tokenize(service: Served, fields: TokenizeFields) -> Tokenized:
    """llama-server's."""

    def work(engine: Engine) -> Tokenized:
        model = engine.loaded.model
        add_bos = fields.add_special and model.add_bos
        check_text(fields.content, engine, "content", special=fields.parse_special, room=MOST_TOKENS)
        tokens = model.tokenize(fields.content, special=fields.parse_special, add_bos=add_bos).tolist()
        if not fields.with_pieces:
            return Tokenized(tokens=tokens)
        return Tokenized(tokens=[TokenPiece(id=one, piece=_piece(model.piece(one, special=True))) for one in tokens])

    return await with_engine(service, fields.model, work)


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


@TEXT.post("/detokenize", summary="Tokens to text")
async def detokenize(service: Served, fields: DetokenizeFields) -> Detokenized:
    """llama-server's; special tokens are spelled."""

    def work(engine: Engine) -> Detokenized:
        tokens = known_tokens(fields.tokens, engine.loaded.model, "tokens", "There is no token")
        return Detokenized(content=engine.loaded.model.detokenize(tokens, special=True))

    return await with_engine(service, fields.model, work)


@TEXT.post("/apply-template", summary="Conversation to prompt text")
async def apply_template(service: Served, fields: ChatFields) -> Templated:
    """The text the model would be shown; takes a chat request and answers nothing."""

    def work(engine: Engine) -> Templated:
        return Templated(prompt=engine.loaded.model.detokenize(chat_turn(fields, engine)[1], special=True))

    return await with_engine(service, fields.model, work)


@TEXT.post("/v1/chat/completions/input_tokens", summary="Length of a conversation's prompt")
@TEXT.post("/chat/completions/input_tokens", include_in_schema=False)
async def input_tokens(service: Served, fields: ChatFields) -> InputTokens:
    """Tokens the model would be shown; takes a chat request and answers nothing."""
    return {"object": "response.input_tokens", "input_tokens": await prompt_length(service, fields)}
