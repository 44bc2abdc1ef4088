"""/v1/completions: texts go on, several at once, or the gap between a prompt and its suffix is filled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from time import time
from typing import Annotated, Any, cast
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from localspec.engine.request import Event, FinishReason, TokenLogProb
from localspec.llama.model import Model
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.server.answers import FINISH_WORDS, Answers
from localspec.server.chat import STREAMED
from localspec.server.completion_shapes import TextChoice, TextCompletion
from localspec.server.errors import invalid
from localspec.server.fields import GenerationFields
from localspec.server.log_probs import text_log_probs
from localspec.server.options import engine_options
from localspec.server.prepare import Asked, check_length, prepared
from localspec.server.route import JsonRoute
from localspec.server.service import Service
from localspec.server.shapes import FinishWord, TextLogProbs, extra, fingerprint, summed, timings, usage
from localspec.server.streaming import EventStream, json_response, openai_lines, whole
from localspec.types import Tokens

ROUTER = APIRouter(tags=["completions"], route_class=JsonRoute)
MOST_TOP = 20
TokenIds = Annotated[list[int], Field(min_length=1)]
Prompts = str | Annotated[list[str], Field(min_length=1)] | TokenIds | Annotated[list[TokenIds], Field(min_length=1)]


class CompletionFields(GenerationFields):
    """POST /v1/completions."""

    prompt: Prompts
    suffix: str | None = Field(default=None, description="Text behind the gap that the answer fills.")
    echo: bool | None = Field(default=None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    best_of: int | None = Field(default=None, ge=1, description="Must equal n.")


@ROUTER.post("/completions", summary="Continue a text", response_model=TextCompletion, responses=STREAMED)
async def completions(request: Request, fields: CompletionFields) -> Response:
    """OpenAI's completions; `index` counts the choices of the first prompt, then of the second, ..."""
    service: Service = request.app.state.service
    lease = await service.lease(fields.model)
    name, engine = lease.name, lease.engine
    asked = await prepared(lease, partial(text_asked, fields))
    starts = [start for one in asked for start in one.starts(engine, fields.choices)]
    answers = service.answer(lease, starts)
    reply = TextReply(name, engine, fields, asked, answers)
    if fields.stream:
        return EventStream(answers, openai_lines(reply.chunks(service.settings.ping_seconds), request.url.path))
    return await whole(request, answers, reply.collected)


def text_asked(fields: CompletionFields, engine: Engine) -> list[Asked]:
    """What each prompt of a request asks the engine.

    Raises:
        ApiError: 400.
        UsageError: a value the engine refuses.
    """
    if fields.best_of is not None and fields.best_of != fields.choices:
        raise invalid("best_of must equal n: nothing is thrown away here.", "best_of", "unsupported_value")
    if fields.echo and fields.logprobs is not None:
        what = "logprobs with echo are not supported: those of a prompt are not computed."
        raise invalid(what, "logprobs", "unsupported_value")
    if fields.echo and fields.suffix is not None:
        raise invalid("echo with suffix is not supported.", "echo", "unsupported_value")
    options = engine_options(fields, engine)
    options["top_log_probs"] = fields.logprobs
    asked = [Asked(_tokens(prompt, fields.suffix, engine), options) for prompt in _each(fields.prompt)]
    for one in asked:
        check_length(one.prompt, engine, "prompt")
    return asked


def _each(prompt: Prompts) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    first = prompt[0]
    return [cast("list[int]", prompt)] if isinstance(first, int) else cast("list[str | list[int]]", prompt)


def _tokens(prompt: str | list[int], suffix: str | None, engine: Engine) -> Tokens:
    model = engine.loaded.model
    if suffix is not None:
        return _gap(prompt, suffix, model)
    if isinstance(prompt, str):
        tokens = engine.tokenize(prompt)
        if not len(tokens):
            raise invalid("prompt is empty, and this model does not begin texts by itself.", "prompt", "invalid_value")
        return tokens
    wrong = next((token for token in prompt if not 0 <= token < model.n_vocab), None)
    if wrong is not None:
        what = f"prompt holds the token {str(wrong)[:24]}; ids are 0 to {model.n_vocab - 1}."
        raise invalid(what, "prompt", "invalid_value")
    return np.array(prompt, dtype=np.int32)


def _gap(prompt: str | list[int], suffix: str, model: Model) -> Tokens:
    """Prefix, suffix and the mark of the middle, as fill-in models are trained: prefix first."""
    if model.fill_in is None:
        raise invalid("suffix: this model has no tokens to fill in a gap with.", "suffix", "unsupported_model")
    if not isinstance(prompt, str):
        raise invalid("prompt must be text where there is a suffix.", "prompt", "invalid_value")
    before, after, middle = model.fill_in
    plain = [model.tokenize(text, special=False, add_bos=False).tolist() for text in (prompt, suffix)]
    start = [model.bos] if model.add_bos and model.bos is not None else []
    return np.array([*start, before, *plain[0], after, *plain[1], middle], dtype=np.int32)


class _Choice:
    """One answer as it is read."""

    def __init__(self, generation: Generation, model: Model, echo: str) -> None:
        self.generation = generation
        self._model = model
        self.echo = echo
        self.text = echo
        self._log_probs: list[TokenLogProb] = []
        self._spelled = len(echo)

    def take(self, event: Event) -> None:
        self.text += event.text
        self._log_probs += [one for one in event.log_probs if one.token not in self._model.end_tokens]

    def log_probs(self) -> TextLogProbs | None:
        """Those not handed out yet; None = there are none."""
        if not self._log_probs:
            return None
        found = text_log_probs(self._log_probs, self._model, self._spelled)
        self._spelled += sum(map(len, found.tokens))
        self._log_probs = []
        return found

    @property
    def finish(self) -> FinishWord:
        return FINISH_WORDS[self.generation.finish or FinishReason.STOP]


class TextReply:
    """The answers of a request in the completion API's shape."""

    def __init__(
        self, name: str, engine: Engine, fields: CompletionFields, asked: list[Asked], answers: Answers
    ) -> None:
        self._engine, self._fields, self._answers = engine, fields, answers
        self._prompts = len(asked)
        model = engine.loaded.model
        echoes = [_echo(prompt, model) if fields.echo else "" for prompt in _each(fields.prompt)]
        self._choices = [
            _Choice(generation, model, echoes[index // fields.choices])
            for index, generation in enumerate(answers.generations)
        ]
        self._head: dict[str, Any] = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time()),
            "model": name,
            "system_fingerprint": fingerprint(engine),
        }

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
                yield self._chunk(TextChoice(index=index, text=choice.echo, logprobs=None, finish_reason=None))
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
                chunk = self._chunk(TextChoice(index=index, text="", logprobs=None, finish_reason=choice.finish))
                chunk.timings = timings(event.stats)
                chunk.localspec = [extra(self._engine, choice.generation)]
                yield chunk
        if self._fields.wants_usage:
            chunk = self._chunk()
            chunk.usage = usage(self._answers.generations, self._prompts)
            chunk.timings = timings(summed([generation.stats for generation in self._answers.generations]))
            yield chunk

    def _chunk(self, *choices: TextChoice) -> TextCompletion:
        return TextCompletion(**self._head, choices=list(choices))


def _echo(prompt: str | list[int], model: Model) -> str:
    return prompt if isinstance(prompt, str) else model.detokenize(prompt, special=True)
