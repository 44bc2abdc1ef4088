"""/v1/responses: OpenAI's newer API, text and tools; it remembers conversations, in memory."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from time import time
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from localspec.chat.reply.reply import Part
from localspec.server.chat.chat import STREAMED
from localspec.server.chat.chat_fields import CalledFunction, CallField, ChatMessage
from localspec.server.chat.exchange import Exchange
from localspec.server.chat.prepare import prompt_length
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import (
    PromptProgress,
    Reading,
    TokenLogProbs,
    chat_log_probs,
    extra,
    reasoning_tokens,
    timings,
)
from localspec.server.http.errors import ApiError
from localspec.server.http.route import ModelRoute
from localspec.server.http.streaming import PING, EventStream, told, whole
from localspec.server.responses.responses_body import NamedChoice, ResponsePrompt, ResponsesBody
from localspec.server.responses.responses_shapes import (
    Deleted,
    Event,
    IncompleteDetails,
    InputDetails,
    InputTokens,
    Items,
    OutputDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)

# Answers of `/v1/responses` that later requests may refer to: in memory, as many as fit, the oldest go first.

MOST_ANSWERS = 1024
MOST_BYTES = 64 << 20
_OVERHEAD = 2048
"""Bytes of an answer besides its text, about."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """One answer."""

    response: ResponseObject
    conversation: tuple[ChatMessage, ...]
    """All messages up to and with the answer, without instructions."""


class ResponseMemory:
    """Belongs to the event loop."""

    def __init__(self, most_answers: int = MOST_ANSWERS, most_bytes: int = MOST_BYTES) -> None:
        self._most_answers, self._most_bytes = most_answers, most_bytes
        self._kept: OrderedDict[str, tuple[Remembered, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, answer: Remembered) -> None:
        """Remembers an answer, and forgets those used longest ago for which there is no room any more."""
        size = _OVERHEAD + sum(map(_size, answer.conversation))
        self._kept[answer.response.id] = answer, size
        self._bytes += size
        while len(self._kept) > self._most_answers or self._bytes > self._most_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed

    def find(self, key: str, param: str) -> Remembered:
        """An answer by its id.

        Args:
            key: the id.
            param: the field it was given in, for the error.

        Raises:
            ApiError: it is not, or no longer, remembered.
        """
        found = self._kept.get(key)
        if found is None:
            status, kind = (404, "not_found_error") if param == "response_id" else (400, "invalid_request_error")
            what = f"There is no response {key[:80]!r} here. They are kept in memory, and the oldest are forgotten."
            raise ApiError(status, kind, what, param=param, code="previous_response_not_found")
        self._kept.move_to_end(key)
        return found[0]

    def forget(self, key: str) -> None:
        """Drops an answer."""
        self.find(key, "response_id")
        self._bytes -= self._kept.pop(key)[1]


def _size(message: ChatMessage) -> int:
    """Characters of a message, about."""
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(str(message.content)) + len(message.reasoning_content or "") + calls


ROUTER = APIRouter(tags=["responses"], route_class=ModelRoute)


def memory_of(request: Request) -> ResponseMemory:
    """Where this server keeps answers."""
    memory: ResponseMemory = request.app.state.responses
    return memory


@ROUTER.post("/responses", summary="Answer (OpenAI's newer API)", response_model=ResponseObject, responses=STREAMED)
async def create(request: Request, body: ResponsesBody) -> Response:
    """The model's answer, as one object or as a stream of events."""
    service: Service = request.app.state.service
    memory = memory_of(request)
    before = _before(body, memory)
    exchange = await Exchange.begin(service, body.answered(before))
    with exchange.answers.handing_over():
        answer = Responding(body, before, exchange, memory)
    if body.stream:
        return EventStream(exchange.answers, answer.lines(service.settings.ping_seconds))

    async def collect() -> Response:
        async for _ in answer.parts(None):
            pass
        answer.finish()
        return Response(answer.response.model_dump_json(), media_type="application/json")

    return await whole(request, exchange.answers, collect)


@ROUTER.post("/responses/input_tokens", summary="Count the tokens of a prompt")
async def input_tokens(request: Request, body: ResponsePrompt) -> InputTokens:
    """How long the prompt would be; nothing is generated."""
    fields = body.fields(_before(body, memory_of(request)))
    return InputTokens(input_tokens=await prompt_length(request.app.state.service, fields))


@ROUTER.get("/responses/{response_id}", summary="An earlier answer")
async def retrieve(request: Request, response_id: str) -> ResponseObject:
    """As long as it is remembered."""
    return memory_of(request).find(response_id, "response_id").response


@ROUTER.delete("/responses/{response_id}", summary="Forget an answer")
async def delete(request: Request, response_id: str) -> Deleted:
    """Answers that go on from it keep what they took over."""
    memory_of(request).forget(response_id)
    return Deleted(id=response_id)


def _before(body: ResponsePrompt, memory: ResponseMemory) -> tuple[ChatMessage, ...]:
    """The conversation that a request goes on with."""
    if body.previous_response_id is None:
        return ()
    return memory.find(body.previous_response_id, "previous_response_id").conversation


class Responding:
    """One answer under way."""

    def __init__(
        self, body: ResponsesBody, before: Sequence[ChatMessage], exchange: Exchange, memory: ResponseMemory
    ) -> None:
        self._body, self._before, self._exchange, self._memory = body, before, exchange, memory
        self._items = Items()
        self._model = exchange.engine.loaded.model
        sampling = exchange.generation.request.sampling
        self.response = ResponseObject(
            id=f"resp_{uuid4().hex}",
            created_at=int(time()),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=exchange.model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning=body.reasoning.model_dump() if body.reasoning is not None else None,
            store=body.store is not False,
            temperature=sampling.temperature,
            text=_text(body),
            tool_choice=_choice(body),
            tools=[tool.model_dump() for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            top_p=sampling.top_p,
        )

    async def parts(self, silence: float | None) -> AsyncIterator[list[Event] | None]:
        """Events of the items as they come."""
        arrivals: AsyncIterator[list[Part] | PromptProgress | None] = self._exchange.parts(silence)
        if self._body.return_progress and silence is not None:
            arrivals = Reading(self._exchange.generation).followed(self._exchange.parts, silence)
        async for found in arrivals:
            if isinstance(found, PromptProgress):
                yield [self._told("response.in_progress") | {"prompt_progress": found.model_dump()}]
            else:
                yield None if found is None else self._items.add(found, self._log_probs() if found else ())

    def _log_probs(self) -> list[TokenLogProbs]:
        found = self._exchange.new_log_probs()
        return chat_log_probs(found, self._model).content if self._body.wants_log_probs else []

    def finish(self) -> list[Event]:
        """Completes the answer and remembers it; the last events of its items."""
        choice, generation, response = self._exchange.choice, self._exchange.generation, self.response
        cut = choice.finish == "length"
        events = self._items.finish("incomplete" if cut else "completed")
        response.status = "incomplete" if cut else "completed"
        response.incomplete_details = IncompleteDetails(reason="max_output_tokens") if cut else None
        response.completed_at = None if cut else int(time())
        response.output = self._items.output
        response.usage = self._usage()
        response.timings = timings(generation.stats)
        response.localspec = extra(self._exchange.engine, generation)
        if response.store:
            self._memory.keep(Remembered(response, (*self._before, *self._body.added(), self._said())))
        return events

    def _usage(self) -> ResponseUsage:
        stats, thought = self._exchange.generation.stats, "".join(self._exchange.choice.reasoning)
        thinking = min(reasoning_tokens([thought], self._model), stats.generated)
        return ResponseUsage(
            input_tokens=stats.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=stats.reused_tokens),
            output_tokens=stats.generated,
            output_tokens_details=OutputDetails(reasoning_tokens=thinking),
            total_tokens=stats.prompt_tokens + stats.generated,
        )

    def _said(self) -> ChatMessage:
        """The answer as a message of the conversation."""
        choice = self._exchange.choice
        calls = [
            CallField(id=call.id, function=CalledFunction(name=call.function.name, arguments=call.function.arguments))
            for call in choice.calls
        ]
        content, thought = "".join(choice.content), "".join(choice.reasoning)
        return ChatMessage(role="assistant", content=content, tool_calls=calls, reasoning_content=thought)

    async def lines(self, silence: float) -> AsyncIterator[str]:
        """Server-sent events in OpenAI's order."""
        number = 0
        async for event in self._events(silence):
            if event is None:
                yield PING
            else:
                yield f"event: {event['type']}\ndata: {json.dumps(event | {'sequence_number': number})}\n\n"
                number += 1

    async def _events(self, silence: float) -> AsyncIterator[Event | None]:
        for kind in ("response.created", "response.in_progress"):
            yield self._told(kind)
        timed = bool(self._body.timings_per_token)
        try:
            async for events in self.parts(silence):
                if events is None:
                    yield None
                for event in events or ():
                    yield event | self._timings() if timed and event["type"].endswith(".delta") else event
            for event in self.finish():
                yield event
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            self.response.status = "failed"
            self.response.error = ResponseFailure(message=told(error).message)
        yield self._told(f"response.{self.response.status}") | (self._timings() if timed else {})

    def _told(self, kind: str) -> Event:
        return {"type": kind, "response": self.response.model_dump(mode="json")}

    def _timings(self) -> Event:
        return {"timings": timings(self._exchange.generation.stats).model_dump()}


def _text(body: ResponsesBody) -> dict[str, Any]:
    wanted = body.text.format if body.text is not None else None
    if wanted is None:
        return {"format": {"type": "text"}}
    return {"format": wanted.model_dump(by_alias=True, exclude_none=True)}


def _choice(body: ResponsesBody) -> str | dict[str, Any]:
    choice = body.tool_choice
    return choice.model_dump() if isinstance(choice, NamedChoice) else choice or "auto"
