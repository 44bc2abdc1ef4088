"""/v1/completions: texts go on, several at once, or the gap between a prompt and its suffix is filled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from localspec.engine.slot import Event, TokenLogProb
from localspec.llama.model import Model
from localspec.runtime.generation import Generation
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import Answers, OneAnswer
from localspec.server.chat.chat import STREAMED
from localspec.server.chat.chat_fields import GenerationFields
from localspec.server.chat.prepare import Asked, bound, check_length, check_text, options_of, prepared
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import (
    FinishWord,
    Offsets,
    TextChoice,
    TextCompletion,
    TextLogProbs,
    extra,
    fingerprint,
    joined,
    prompt_log_probs,
    summed,
    text_log_probs,
    timings,
    usage,
)
from localspec.server.http.errors import invalid
from localspec.server.http.route import ModelRoute
from localspec.server.http.streaming import EventStream, json_response, leaving, openai_lines, whole
from localspec.types import Tokens

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

ROUTER = APIRouter(tags=["completions"], route_class=ModelRoute)
MOST_TOP = 20
MOST_PROMPTS = 2048
"""Prompts in one request, as for embeddings; fewer have places."""
TokenIds = Annotated[list[int], Field(min_length=1)]
_Several = Field(min_length=1, max_length=MOST_PROMPTS)
Prompts = str | Annotated[list[str], _Several] | TokenIds | Annotated[list[TokenIds], _Several]


class CompletionFields(GenerationFields):
    """POST /v1/completions."""

    prompt: Prompts
    suffix: str | None = Field(default=None, description="Text after the gap that the answer fills.")
    echo: bool | None = Field(default=None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    best_of: int | None = Field(default=None, ge=1, description="Must equal n.")
    drawn_log_probs: ClassVar[bool] = False
    """Whether log-probabilities are those that tokens were drawn by."""

    @property
    def wants_scores(self) -> bool:
        """Whether the prompt's own log-probabilities are asked for."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def only_echo(self) -> bool:
        """Whether nothing is to be generated: the prompt comes back, scored if log-probabilities are asked for."""
        return bool(self.echo) and self.max_tokens == 0


@ROUTER.post("/completions", summary="Continue a text", response_model=TextCompletion, responses=STREAMED)
async def completions(request: Request, fields: CompletionFields) -> Response:
    """OpenAI's completions; `index` counts the choices of the first prompt, then of the second, ..."""
    service: Service = request.app.state.service
    lease = await service.lease(fields.model)
    name, engine = lease.name, lease.engine
    asked = await prepared(lease, partial(text_asked, fields, service))
    asked = await bound(service, lease, asked)
    starts = [] if fields.only_echo else [start for one in asked for start in one.starts(engine, fields.choices)]
    answers = service.answer(lease, starts)
    with answers.handing_over():
        scores = await scored(request, service, lease, fields, asked) if fields.wants_scores else None
        reply = TextReply(name, engine, fields, asked, scores, answers)
    if fields.stream:
        return EventStream(answers, openai_lines(reply.chunks(service.settings.ping_seconds), request.url.path))
    return await whole(request, answers, reply.collected)


def text_asked(fields: CompletionFields, service: Service, engine: Engine) -> list[Asked]:
    """What each prompt of a request asks the engine.

    Raises:
        ApiError: 400.
        UsageError: a value the engine refuses.
    """
    if fields.best_of is not None and fields.best_of != fields.choices:
        raise invalid("best_of must equal n: nothing is thrown away here.", "best_of", "unsupported_value")
    if fields.echo and fields.suffix is not None:
        raise invalid("echo with suffix is not supported.", "echo", "unsupported_value")
    service.check_count(engine, len(_each(fields.prompt)) * fields.choices)
    scores = {"top_log_probs": fields.logprobs, "drawn_log_probs": fields.drawn_log_probs}
    options = options_of(fields, engine, -1 if fields.only_echo else None, **scores)
    form = fields.form()
    asked = [Asked(_tokens(prompt, fields.suffix, engine), options, form) for prompt in _each(fields.prompt)]
    for one in asked:
        check_length(one.prompt, engine, "prompt")
    return asked


async def scored(
    request: Request, service: Service, lease: Lease, fields: CompletionFields, asked: Sequence[Asked]
) -> list[list[TokenLogProb]]:
    """Log-probabilities of every prompt's tokens but its first, while the answers are generated."""
    score, top = lease.engine.score, fields.logprobs or 0
    with service.reading_texts():
        async with leaving(request) as left:
            return [
                await service.read(lease.name, len(one.prompt), partial(score, one.prompt, top), left) for one in asked
            ]


def _each(prompt: Prompts) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    first = prompt[0]
    return [cast("list[int]", prompt)] if isinstance(first, int) else cast("list[str | list[int]]", prompt)


def _tokens(prompt: str | list[int], suffix: str | None, engine: Engine) -> Tokens:
    model = engine.loaded.model
    if suffix is not None:
        return _gap(prompt, suffix, engine)
    if isinstance(prompt, str):
        check_text(prompt, engine, "prompt")
        tokens = engine.tokenize(prompt)
        if not len(tokens):
            raise invalid("prompt is empty, and this model does not begin texts by itself.", "prompt", "invalid_value")
        return tokens
    return known_tokens(prompt, model, "prompt")


def known_tokens(given: Sequence[int], model: Model, param: str) -> Tokens:
    """Tokens that a field gives by their ids.

    Raises:
        ApiError: 400, one of them is not in the vocabulary.
    """
    wrong = next((token for token in given if not 0 <= token < model.n_vocab), None)
    if wrong is not None:
        what = f"{param} holds the token {str(wrong)[:24]}; ids are 0 to {model.n_vocab - 1}."
        raise invalid(what, param, "invalid_value")
    return np.array(given, dtype=np.int32)


def _gap(prompt: str | list[int], suffix: str, engine: Engine) -> Tokens:
    """Prefix, suffix and the mark of the middle, as fill-in models are trained: prefix first."""
    model = engine.loaded.model
    if model.fill_in is None:
        raise invalid("suffix: this model has no tokens to fill in a gap with.", "suffix", "unsupported_model")
    if not isinstance(prompt, str):
        raise invalid("prompt must be text where there is a suffix.", "prompt", "invalid_value")
    check_text(prompt, engine, "prompt", special=False)
    check_text(suffix, engine, "suffix", special=False)
    before, after, middle = model.fill_in
    plain = [model.tokenize(text, special=False, add_bos=False).tolist() for text in (prompt, suffix)]
    start = [model.bos] if model.add_bos and model.bos is not None else []
    return np.array([*start, before, *plain[0], after, *plain[1], middle], dtype=np.int32)


class _Choice:
    """One answer as it is read."""

    def __init__(self, generation: Generation | None, model: Model, echo: str, echoed: TextLogProbs | None) -> None:
        self.answer = None if generation is None else OneAnswer(generation, model.end_tokens)
        """None = only the prompt comes back."""
        self._model = model
        self.echo = echo
        self.text = echo
        self._echoed = echoed
        self._offsets = Offsets(len(echo))

    def take(self, event: Event) -> None:
        self.text += event.text
        if self.answer is not None:
            self.answer.take(event)

    def log_probs(self) -> TextLogProbs | None:
        """Those not handed out yet; None = there are none."""
        echoed, self._echoed = self._echoed, None
        fresh = [] if self.answer is None else self.answer.new_log_probs()
        if not fresh:
            return echoed
        found = text_log_probs(fresh, self._model, self._offsets, special=False)
        return found if echoed is None else joined(echoed, found)

    @property
    def finish(self) -> FinishWord:
        return "length" if self.answer is None else self.answer.finish


class TextReply:
    """The answers of a request in the completion API's shape."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        fields: CompletionFields,
        asked: Sequence[Asked],
        scores: Sequence[list[TokenLogProb]] | None,
        answers: Answers,
    ) -> None:
        self._engine, self._fields, self._answers = engine, fields, answers
        self._prompts = [len(one.prompt) for one in asked]
        generations = answers.generations or [None] * (len(asked) * fields.choices)
        echoes = self._echoes(asked, scores)
        self._choices = [
            _Choice(generation, engine.loaded.model, *echoes[index // fields.choices])
            for index, generation in enumerate(generations)
        ]
        self._head: dict[str, Any] = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time()),
            "model": name,
            "system_fingerprint": fingerprint(engine),
        }

    def _echoes(
        self, asked: Sequence[Asked], scores: Sequence[list[TokenLogProb]] | None
    ) -> list[tuple[str, TextLogProbs | None]]:
        """By prompt: what is said of it, and how likely that is."""
        if not self._fields.echo:
            return [("", None)] * len(asked)
        model, echoes = self._engine.loaded.model, []
        for number, (prompt, one) in enumerate(zip(_each(self._fields.prompt), asked, strict=True)):
            is_text = isinstance(prompt, str)
            text = prompt if isinstance(prompt, str) else model.detokenize(prompt, special=True)
            first = None if is_text and model.add_bos and model.bos is not None else int(one.prompt[0])
            echoes.append((text, prompt_log_probs(first, scores[number], model, text) if scores else None))
        return echoes

    async def collected(self) -> Response:
        """The whole answer, once it is there."""
        async for arrival in self._answers.events():
            if arrival is not None:
                self._choices[arrival.index].take(arrival.event)
        generations = self._answers.generations
        choices = [
            TextChoice(index=index, text=one.text, logprobs=one.log_probs(), finish_reason=one.finish)
            for index, one in enumerate(self._choices)
        ]
        body = TextCompletion(**self._head, choices=choices, usage=usage(generations, self._prompts))
        body.timings = timings(summed([generation.stats for generation in generations]))
        body.localspec = [extra(self._engine, generation) for generation in generations]
        return json_response(body)

    async def chunks(self, silence: float) -> AsyncIterator[TextCompletion | None]:
        """The stream: echoed prompts, text as it comes, a finish chunk a choice, usage if it was asked for."""
        for index, choice in enumerate(self._choices):
            if choice.echo:
                found = choice.log_probs()
                yield self._chunk(TextChoice(index=index, text=choice.echo, logprobs=found, finish_reason=None))
            if choice.answer is None:
                yield self._last_chunk(index, choice)
        async for arrival in self._answers.events(silence):
            if arrival is None:
                yield None
                continue
            index, event = arrival.index, arrival.event
            choice = self._choices[index]
            choice.take(event)
            found = choice.log_probs()
            if event.text or found is not None:
                chunk = self._chunk(TextChoice(index=index, text=event.text, logprobs=found, finish_reason=None))
                if self._fields.timings_per_token:
                    chunk.timings = timings(event.stats)
                yield chunk
            if event.finish is not None:
                yield self._last_chunk(index, choice)
        if self._fields.wants_usage:
            chunk = self._chunk()
            chunk.usage = usage(self._answers.generations, self._prompts)
            chunk.timings = timings(summed([generation.stats for generation in self._answers.generations]))
            yield chunk

    def _last_chunk(self, index: int, choice: _Choice) -> TextCompletion:
        chunk = self._chunk(TextChoice(index=index, text="", logprobs=None, finish_reason=choice.finish))
        if choice.answer is not None:
            chunk.timings = timings(choice.answer.generation.stats)
            chunk.localspec = [extra(self._engine, choice.answer.generation)]
        return chunk

    def _chunk(self, *choices: TextChoice) -> TextCompletion:
        return TextCompletion(**self._head, choices=list(choices))
