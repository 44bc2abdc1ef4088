"""/v1/chat/completions, and what all APIs that answer share: one request's answers, taken apart as they stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import perf_counter, time
from typing import Any, NamedTuple
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from localspec.chat.reply.dialect import Turn
from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.engine.slot import Event, FinishReason
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import Answers, OneAnswer
from localspec.server.chat.chat_fields import ChatFields, CompletionFields
from localspec.server.chat.prepare import TOOLS, Asked, bound, chat_asked, prepared, text_asked
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogProbs,
    ChunkChoice,
    Delta,
    Extra,
    PromptProgress,
    chat_log_probs,
    extra,
    fingerprint,
    reasoning_tokens,
    summed,
    timings,
    usage,
)
from localspec.server.http.reading import ModelRoute
from localspec.server.http.streaming import EventStream, json_response, openai_lines, whole
from localspec.types import NO_TOKENS, Tokens

_LOOK_SECONDS = 0.25
"""Between two looks at how far a prompt is read."""


class News(NamedTuple):
    """What one pass brings."""

    number: int
    """Of the choice."""
    event: Event
    parts: list[Part]


class Exchange:
    """Answers under way, whose maker reads them to the end, or closes `answers`."""

    def __init__(self, lease: Lease, asked: Sequence[Asked], answers: Answers, turn: Turn | None = None) -> None:
        self.name, self.engine, self.model = lease.name, lease.engine, lease.engine.loaded.model
        self.asked, self.answers = asked, answers
        ends = self.model.end_tokens
        first = asked[0]
        self.choices = [
            OneAnswer(one, ends, None if turn is None else turn.parser(first.prompt, lone=first.field == TOOLS))
            for one in answers.generations
        ]
        """All of the first prompt, then of the second, ..."""

    @classmethod
    async def chat(
        cls, service: Service, fields: ChatFields, lease: Lease | None = None, said: Tokens = NO_TOKENS
    ) -> Exchange:
        """Sends a conversation to its model.

        Args:
            service: of the server.
            fields: the conversation.
            lease: on the model that is to answer, taken over; None = on the one that the fields name.
            said: tokens that the conversation goes on from.
        """
        lease = lease or await service.lease(fields.model)
        turn, asked = await prepared(lease, partial(chat_asked, fields, said=said))
        return await cls._begin(service, lease, [asked], fields.choices, turn)

    @classmethod
    async def text(cls, service: Service, fields: CompletionFields, lease: Lease | None = None) -> Exchange:
        """Sends texts that go on to their model; arguments as for `chat`."""
        lease = lease or await service.lease(fields.model)
        asked = await prepared(lease, partial(text_asked, fields, service))
        return await cls._begin(service, lease, asked, 0 if fields.only_echo else fields.choices)

    @classmethod
    async def _begin(
        cls, service: Service, lease: Lease, asked: list[Asked], choices: int, turn: Turn | None = None
    ) -> Exchange:
        asked = await bound(service, lease, asked)
        answers = service.answer(lease, [start for one in asked for start in one.starts(lease.engine, choices)])
        with answers.handing_over():
            return cls(lease, asked, answers, turn)

    async def news(self, silence: float | None = None) -> AsyncIterator[News | None]:
        """What each pass brings, to the end; None whenever `silence` seconds brought nothing."""
        async for arrival in self.answers.events(silence):
            if arrival is None:
                yield None
            else:
                index, event = arrival.index, arrival.event
                yield News(index, event, self.choices[index].take(event))

    async def _with_progress(self, silence: float) -> AsyncIterator[News | PromptProgress | None]:
        """The same, and before the first answer's first news how far its prompt is read."""
        generation, begun, reported, said = self.answers.generations[0], perf_counter(), -1, perf_counter()
        reading = True
        async for news in self.news(min(silence, _LOOK_SECONDS)):
            progress = None
            if reading:
                total, cache = len(generation.request.prompt), generation.stats.reused_tokens
                processed = total if news is not None else min(total, cache + generation.read)
                if processed != reported:
                    progress = PromptProgress(total, cache, processed, int((perf_counter() - begun) * 1e3))
                    yield progress
                reading, reported = news is None, processed
            silent = perf_counter() - said >= silence
            if news is not None or silent:
                yield news
            if news is not None or progress is not None or silent:
                said = perf_counter()

    def stream(self, silence: float, progress: bool | None) -> AsyncIterator[News | PromptProgress | None]:
        """What each pass brings, and with `progress` how far the prompt is read."""
        return self._with_progress(silence) if progress else self.news(silence)

    async def read(self) -> None:
        """Waits for all of it."""
        async for _ in self.news():
            pass

    def head(self, prefix: str, kind: str) -> Any:
        """What every answer and every chunk of OpenAI's older APIs begins with."""
        return {
            "id": f"{prefix}-{uuid4().hex}",
            "object": kind,
            "created": int(time()),
            "model": self.name,
            "system_fingerprint": fingerprint(self.engine),
        }

    def counted(self) -> Any:
        """What came of all answers, in OpenAI's shape and in llama-server's."""
        generations = self.answers.generations
        thought = reasoning_tokens([answer.reasoning for answer in self.choices], self.model)
        counted = usage(generations, [len(one.prompt) for one in self.asked], thought)
        return {"usage": counted, "timings": timings(summed(generations))}

    def extras(self) -> list[Extra]:
        """What only localspec has to say of each choice."""
        return [extra(self.engine, generation) for generation in self.answers.generations]

    def stop_string(self) -> str | None:
        """The stop string that ended the first answer; None = something else did."""
        generation, model = self.choices[0].generation, self.model
        request, tokens = generation.request, generation.tokens
        if not request.stop or generation.finish is not FinishReason.STOP or tokens[-1] in model.end_tokens:
            return None
        pieces = [model.piece(token, token in request.preserved) for token in tokens[request.min_tokens :]]
        text = b"".join(pieces).decode("utf-8", "replace")
        found = [(at, stop) for stop in request.stop if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None


ROUTER = APIRouter(tags=["chat"], route_class=ModelRoute)
_STRING = {"type": "string"}
_EVENT = {"type": "object", "properties": {"event": _STRING, "data": _STRING}, "required": ["data"]}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""For the OpenAPI document: with `stream` the same path answers with events."""


@ROUTER.post("/chat/completions", summary="Answer a conversation", response_model=ChatCompletion, responses=STREAMED)
async def chat_completions(request: Request, fields: ChatFields) -> Response:
    """OpenAI's chat completions, with llama-server's `timings` and what came of the drafts."""
    service: Service = request.app.state.service
    exchange = await Exchange.chat(service, fields)
    with exchange.answers.handing_over():
        reply = ChatReply(exchange, fields)
    if fields.stream:
        lines = openai_lines(reply.chunks(service.settings.ping_seconds), request.url.path)
        return EventStream(exchange.answers, lines)
    return await whole(request, exchange.answers, reply.collected)


class ChatReply:
    """The answers of a request in the chat API's shape."""

    def __init__(self, exchange: Exchange, fields: ChatFields) -> None:
        self._exchange, self._fields = exchange, fields
        self._head: ChatChunk = exchange.head("chatcmpl", "chat.completion.chunk") | {"choices": []}

    async def collected(self) -> Response:
        """The whole answer, once it is there."""
        await self._exchange.read()
        body = {
            "object": "chat.completion",
            "choices": [self._whole(index, answer) for index, answer in enumerate(self._exchange.choices)],
            "localspec": self._exchange.extras(),
        }
        return json_response({**self._head, **body, **self._exchange.counted()})

    def _whole(self, index: int, answer: OneAnswer) -> ChatChoice:
        message: AnswerMessage = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.calls:
            message["content"], message["tool_calls"] = answer.content or None, answer.calls
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        log_probs = self._log_probs(answer) if self._fields.logprobs else None
        return {"index": index, "message": message, "logprobs": log_probs, "finish_reason": answer.finish}

    def _log_probs(self, answer: OneAnswer) -> ChatLogProbs:
        return {"content": chat_log_probs(answer.new_log_probs(), self._exchange.model), "refusal": None}

    async def chunks(self, silence: float) -> AsyncIterator[ChatChunk | None]:
        """The stream: roles, what comes as it comes, a finish chunk a choice, usage if it was asked for."""
        for index in range(len(self._exchange.choices)):
            yield self._chunk(_news_of(index, {"role": "assistant", "content": None}))
        exchange = self._exchange
        async for news in exchange.stream(silence, self._fields.return_progress):
            if news is None:
                yield None
                continue
            if isinstance(news, PromptProgress):
                yield self._chunk(_news_of(0, {"content": None})) | {"prompt_progress": news}
                continue
            answer = exchange.choices[news.number]
            for delta in _deltas(news.parts, len(answer.calls)):
                yield self._content_chunk(news.number, answer, delta)
            if news.event.finish is not None:
                if answer.log_probs:
                    yield self._content_chunk(news.number, answer, {"content": ""})
                yield self._last_chunk(news.number, answer)
        if self._fields.wants_usage:
            yield self._chunk() | exchange.counted()

    def _content_chunk(self, index: int, answer: OneAnswer, delta: Delta) -> ChatChunk:
        choice = _news_of(index, delta)
        if self._fields.logprobs and answer.log_probs:
            choice["logprobs"] = self._log_probs(answer)
        chunk = self._chunk(choice)
        if self._fields.timings_per_token:
            chunk["timings"] = timings(answer.generation.stats)
        return chunk

    def _last_chunk(self, index: int, answer: OneAnswer) -> ChatChunk:
        chunk = self._chunk({"index": index, "delta": {}, "finish_reason": answer.finish})
        chunk["timings"] = timings(answer.generation.stats)
        chunk["localspec"] = [extra(self._exchange.engine, answer.generation)]
        return chunk

    def _chunk(self, *choices: ChunkChoice) -> ChatChunk:
        return {**self._head, "choices": list(choices)}


def _news_of(index: int, delta: Delta) -> ChunkChoice:
    return {"index": index, "delta": delta, "finish_reason": None}


def _deltas(parts: list[Part], calls: int) -> list[Delta]:
    """What is new, `calls` being how many tool calls have begun by now, those of `parts` included."""
    at = calls - sum(isinstance(part, CallBegun) for part in parts) - 1
    deltas: list[Delta] = []
    for part in parts:
        if isinstance(part, Content):
            deltas.append({"content": part.text})
        elif isinstance(part, Reasoning):
            deltas.append({"reasoning_content": part.text})
        elif isinstance(part, CallBegun):
            at += 1
            function: Any = {"name": part.name, "arguments": ""}
            deltas.append({"tool_calls": [{"index": at, "id": part.id, "type": "function", "function": function}]})
        elif isinstance(part, CallArguments):
            deltas.append({"tool_calls": [{"index": at, "function": {"arguments": part.text}}]})
    return deltas
