"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import time
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.server.chat.answers import OneAnswer
from localspec.server.chat.chat_fields import ChatFields
from localspec.server.chat.exchange import Exchange
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogProbs,
    ChunkChoice,
    Delta,
    PromptProgress,
    chat_log_probs,
    extra,
    fingerprint,
    reasoning_tokens,
    summed,
    timings,
    usage,
)
from localspec.server.http.route import ModelRoute
from localspec.server.http.streaming import EventStream, json_response, openai_lines, whole

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
        self._generations = exchange.answers.generations
        self._head: ChatChunk = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": int(time()),
            "model": exchange.name,
            "system_fingerprint": fingerprint(exchange.engine),
            "choices": [],
        }

    async def collected(self) -> Response:
        """The whole answer, once it is there."""
        await self._exchange.read()
        body = {
            "object": "chat.completion",
            "choices": [self._whole(index, answer) for index, answer in enumerate(self._exchange.choices)],
            "localspec": [extra(self._exchange.engine, generation) for generation in self._generations],
        }
        return json_response({**self._head, **body, **self._counted()})

    def _whole(self, index: int, answer: OneAnswer) -> ChatChoice:
        message: AnswerMessage = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.calls:
            message["content"], message["tool_calls"] = answer.content or None, answer.calls
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        log_probs = self._log_probs(answer) if self._fields.logprobs else None
        return {"index": index, "message": message, "logprobs": log_probs, "finish_reason": answer.finish}

    def _counted(self) -> Any:
        thought = reasoning_tokens([answer.reasoning for answer in self._exchange.choices], self._exchange.model)
        counted = usage(self._generations, [len(self._exchange.asked[0].prompt)], thought)
        return {"usage": counted, "timings": timings(summed(self._generations))}

    def _log_probs(self, answer: OneAnswer) -> ChatLogProbs:
        return {"content": chat_log_probs(answer.new_log_probs(), self._exchange.model), "refusal": None}

    async def chunks(self, silence: float) -> AsyncIterator[ChatChunk | None]:
        """The stream: roles, what comes as it comes, a finish chunk a choice, usage if it was asked for."""
        for index in range(len(self._generations)):
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
            yield self._chunk() | self._counted()

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
