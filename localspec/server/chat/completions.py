"""/v1/completions: texts go on, several at once, or the gap between a prompt and its suffix is filled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from localspec.engine.slot import TokenLogProb
from localspec.llama.model import Model
from localspec.server.chat.answers import OneAnswer
from localspec.server.chat.chat import STREAMED, Exchange
from localspec.server.chat.chat_fields import CompletionFields
from localspec.server.chat.prepare import each_prompt
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import (
    Completion,
    Offsets,
    TextChoice,
    TextCompletion,
    TextLogProbs,
    extra,
    joined,
    prompt_log_probs,
    text_log_probs,
    timings,
)
from localspec.server.http.reading import ModelRoute
from localspec.server.http.streaming import EventStream, json_response, leaving, openai_lines, whole

ROUTER = APIRouter(tags=["completions"], route_class=ModelRoute)


@ROUTER.post("/completions", summary="Continue a text", response_model=TextCompletion, responses=STREAMED)
async def completions(request: Request, fields: CompletionFields) -> Response:
    """OpenAI's completions; `index` counts the choices of the first prompt, then of the second, ..."""
    service: Service = request.app.state.service
    exchange = await Exchange.text(service, fields)
    with exchange.answers.handing_over():
        scores = await _scored(request, exchange, fields.logprobs or 0) if fields.wants_scores else None
        reply = TextReply(exchange, fields, scores)
    if fields.stream:
        lines = openai_lines(reply.chunks(service.settings.ping_seconds), request.url.path)
        return EventStream(exchange.answers, lines)
    return await whole(request, exchange.answers, reply.collected)


async def _scored(request: Request, exchange: Exchange, top: int) -> list[list[TokenLogProb]]:
    """Log-probabilities of every prompt's tokens but its first, while the answers are generated."""
    service: Service = request.app.state.service
    with service.reading_texts():
        async with leaving(request) as left:
            return [
                await service.read(
                    exchange.name, len(one.prompt), partial(exchange.engine.score, one.prompt, top), left
                )
                for one in exchange.asked
            ]


class _Text:
    """The text of one choice, after what is echoed of its prompt."""

    def __init__(self, answer: OneAnswer | None, model: Model, echo: str, echoed: TextLogProbs | None) -> None:
        """`answer`: None = only the prompt comes back."""
        self.answer, self.echo = answer, echo
        self._model, self._echoed, self._offsets = model, echoed, Offsets(len(echo))

    def log_probs(self) -> TextLogProbs | None:
        """Those not handed out yet; None = there are none."""
        echoed, self._echoed = self._echoed, None
        fresh = [] if self.answer is None else self.answer.new_log_probs()
        if not fresh:
            return echoed
        found = text_log_probs(fresh, self._model, self._offsets, special=False)
        return found if echoed is None else joined(echoed, found)

    def choice(self, index: int, text: str, log_probs: TextLogProbs | None, *, ended: bool) -> TextChoice:
        finish = ("length" if self.answer is None else self.answer.finish) if ended else None
        return {"index": index, "text": text, "logprobs": log_probs, "finish_reason": finish}


class TextReply:
    """The answers of a request in the completion API's shape."""

    def __init__(self, exchange: Exchange, fields: CompletionFields, scores: list[list[TokenLogProb]] | None) -> None:
        """`scores`: of the prompts that are echoed; None = they are not asked for."""
        self._exchange, self._fields = exchange, fields
        answers: list[OneAnswer | None] = [*exchange.choices] or [None] * (len(exchange.asked) * fields.choices)
        echoes = self._echoes(scores)
        self._texts = [
            _Text(answer, exchange.model, *echoes[index // fields.choices]) for index, answer in enumerate(answers)
        ]
        self._head: Completion = exchange.head("cmpl", "text_completion")

    def _echoes(self, scores: list[list[TokenLogProb]] | None) -> list[tuple[str, TextLogProbs | None]]:
        """By prompt: what is said of it, and how likely that is."""
        asked, model, echoes = self._exchange.asked, self._exchange.model, []
        if not self._fields.echo:
            return [("", None)] * len(asked)
        for number, (prompt, one) in enumerate(zip(each_prompt(self._fields.prompt), asked, strict=True)):
            is_text = isinstance(prompt, str)
            text = prompt if isinstance(prompt, str) else model.detokenize(prompt, special=True)
            first = None if is_text and model.add_bos and model.bos is not None else int(one.prompt[0])
            echoes.append((text, prompt_log_probs(first, scores[number], model, text) if scores else None))
        return echoes

    async def collected(self) -> Response:
        """The whole answer, once it is there."""
        await self._exchange.read()
        choices = [
            one.choice(index, one.echo + (one.answer.content if one.answer else ""), one.log_probs(), ended=True)
            for index, one in enumerate(self._texts)
        ]
        extras = {"localspec": self._exchange.extras()}
        return json_response(self._chunk(*choices) | self._exchange.counted() | extras)

    async def chunks(self, silence: float) -> AsyncIterator[TextCompletion | None]:
        """The stream: echoed prompts, text as it comes, a finish chunk a choice, usage if it was asked for."""
        for index, text in enumerate(self._texts):
            if text.echo:
                yield self._chunk(text.choice(index, text.echo, text.log_probs(), ended=False))
            if text.answer is None:
                yield self._last_chunk(index, text)
        async for news in self._exchange.news(silence):
            if news is None:
                yield None
                continue
            text, event = self._texts[news.number], news.event
            found = text.log_probs()
            if event.text or found is not None:
                chunk = self._chunk(text.choice(news.number, event.text, found, ended=False))
                if self._fields.timings_per_token:
                    chunk["timings"] = timings(event.stats)
                yield chunk
            if event.finish is not None:
                yield self._last_chunk(news.number, text)
        if self._fields.wants_usage:
            yield self._chunk() | self._exchange.counted()

    def _last_chunk(self, index: int, text: _Text) -> TextCompletion:
        chunk = self._chunk(text.choice(index, "", None, ended=True))
        if text.answer is not None:
            chunk["timings"] = timings(text.answer.generation.stats)
            chunk["localspec"] = [extra(self._exchange.engine, text.answer.generation)]
        return chunk

    def _chunk(self, *choices: TextChoice) -> TextCompletion:
        return {**self._head, "choices": list(choices)}
