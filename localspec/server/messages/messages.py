"""/v1/messages: Anthropic's API, for clients that speak only that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded
from localspec.server.chat.chat import STREAMED
from localspec.server.chat.exchange import Exchange, arguments_of
from localspec.server.chat.prepare import prompt_length
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import FinishWord
from localspec.server.http.errors import BODIES, ApiError, error_body
from localspec.server.http.route import ModelRoute
from localspec.server.http.streaming import EventStream, json_response, told, whole
from localspec.server.messages.messages_body import MessagesBody, Prompt

# Anthropic's content blocks, put together from the parts of an answer, and the events that say so while it streams.

Fields = dict[str, Any]


class Blocks:
    """The blocks of one answer; one is open at a time."""

    def __init__(self) -> None:
        self.content: list[Fields] = []
        """Complete blocks, and the one that is open."""
        self._open = False
        self._arguments: list[str] = []  # of the call that is open

    def add(self, parts: Sequence[Part]) -> list[Fields]:
        """Takes parts, returns the events they bring."""
        events: list[Fields] = []
        for part in parts:
            if isinstance(part, CallBegun):
                empty = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                events += [*self.close(), self._begin(empty)]
            elif isinstance(part, CallArguments):
                self._arguments.append(part.text)
                events.append(self._delta({"type": "input_json_delta", "partial_json": part.text}))
            elif isinstance(part, CallEnded):
                self.content[-1] = self.content[-1] | {"input": arguments_of("".join(self._arguments))}
                self._arguments = []
                events += self.close()
            else:
                events += self._add_text(part)
        return events

    def close(self) -> list[Fields]:
        """Ends the open block."""
        if not self._open:
            return []
        self._open = False
        return [{"type": "content_block_stop", "index": len(self.content) - 1}]

    def _add_text(self, part: Content | Reasoning) -> list[Fields]:
        kind = "text" if isinstance(part, Content) else "thinking"
        events: list[Fields] = []
        if not self._open or self.content[-1]["type"] != kind:
            empty = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            events += [*self.close(), self._begin(empty)]
            self.content[-1] = dict(empty)
        self.content[-1][kind] += part.text
        return [*events, self._delta({"type": f"{kind}_delta", kind: part.text})]

    def _begin(self, block: Fields) -> Fields:
        self._open = True
        self.content.append(block)
        return {"type": "content_block_start", "index": len(self.content) - 1, "content_block": block}

    def _delta(self, delta: Fields) -> Fields:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


ROUTER = APIRouter(tags=["messages"], route_class=ModelRoute)
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_STOP_REASONS: dict[FinishWord, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


class MessageUsage(BaseModel):
    """Tokens, those of the prompt that were cached apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class Answer(BaseModel):
    """An assistant's turn."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    """Blocks of text, thinking and tool_use, in the order they came."""
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """Tokens of a prompt."""

    input_tokens: int


def _error_body(error: ApiError) -> dict[str, Any]:
    """Anthropic's error body."""
    kind = _ERROR_TYPES.get(error.status_code, "api_error" if error.status_code >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


BODIES["/v1/messages"] = _error_body
BODIES["/messages"] = _error_body


@ROUTER.post("/messages", summary="Answer a conversation (Anthropic's API)", response_model=Answer, responses=STREAMED)
async def create(request: Request, body: MessagesBody) -> Response:
    """The assistant's next turn, as one message or as a stream of events."""
    service: Service = request.app.state.service
    exchange = await Exchange.begin(service, body.answered())
    if body.stream:
        return EventStream(exchange.answers, _lines(exchange, service.settings.ping_seconds, request.url.path))

    async def collect() -> Response:
        blocks = Blocks()
        async for parts in exchange.parts():
            blocks.add(parts or ())
        return json_response(_answer(exchange, f"msg_{uuid4().hex}", blocks))

    return await whole(request, exchange.answers, collect)


@ROUTER.post("/messages/count_tokens", summary="Count the tokens of a conversation (Anthropic's API)")
async def count_tokens(request: Request, body: Prompt) -> TokenCount:
    """How long the prompt would be; nothing is generated."""
    return TokenCount(input_tokens=await prompt_length(request.app.state.service, body.fields()))


def _usage(exchange: Exchange) -> MessageUsage:
    stats = exchange.generation.stats
    return MessageUsage(
        input_tokens=stats.prompt_tokens - stats.reused_tokens,
        output_tokens=stats.generated,
        cache_read_input_tokens=stats.reused_tokens,
        cache_creation_input_tokens=0,
    )


def _answer(exchange: Exchange, key: str, blocks: Blocks) -> Answer:
    stopped = exchange.stop_string()
    return Answer(
        id=key,
        type="message",
        role="assistant",
        model=exchange.model,
        content=blocks.content,
        stop_reason="stop_sequence" if stopped is not None else _STOP_REASONS[exchange.choice.finish],
        stop_sequence=stopped,
        usage=_usage(exchange),
    )


async def _lines(exchange: Exchange, silence: float, path: str) -> AsyncIterator[str]:
    """Server-sent events in Anthropic's order."""
    try:
        async for event in _events(exchange, silence):
            yield _line(event)
    except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
        yield _line(error_body(told(error), path))


async def _events(exchange: Exchange, silence: float) -> AsyncIterator[Fields]:
    key, blocks = f"msg_{uuid4().hex}", Blocks()
    empty = Answer(
        id=key, model=exchange.model, content=[], stop_reason=None, stop_sequence=None, usage=_usage(exchange)
    )
    yield {"type": "message_start", "message": empty.model_dump()}
    async for parts in exchange.parts(silence):
        if parts is None:
            yield {"type": "ping"}
        else:
            for event in blocks.add(parts):
                yield event
    for event in blocks.close():
        yield event
    answer = _answer(exchange, key, blocks)
    delta = {"stop_reason": answer.stop_reason, "stop_sequence": answer.stop_sequence}
    yield {"type": "message_delta", "delta": delta, "usage": answer.usage.model_dump()}
    yield {"type": "message_stop"}


def _line(event: Fields) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
