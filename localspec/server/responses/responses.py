"""/v1/responses: OpenAI's newer API, text and tools; it remembers conversations, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from itertools import count
from time import time
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from localspec.chat.reply.reply import Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded
from localspec.server.chat.answers import (
    Extra,
    InputTokens,
    PromptProgress,
    Timings,
    TokenLogProbs,
    chat_log_probs,
    extra,
    reasoning_tokens,
    timings,
)
from localspec.server.chat.chat import STREAMED, Exchange, News
from localspec.server.chat.fields import Json
from localspec.server.chat.prepare import prompt_length
from localspec.server.http.output import NAMED, ApiError, respond, told
from localspec.server.http.reading import ModelRoute, Served
from localspec.server.responses.body import NamedTool, ResponsePrompt, ResponsesBody

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class TextOutput(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogProbs]


class MessageOutput(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[TextOutput]


class ThoughtOutput(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningOutput(TypedDict):
    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ThoughtOutput]
    status: Status


class CallOutput(TypedDict):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Status


ItemOutput: TypeAlias = MessageOutput | ReasoningOutput | CallOutput


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(TypedDict):
    code: Literal["server_error"]
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[ItemOutput]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any] | None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    timings: Timings | None  # llama-server's, once the answer is there
    localspec: Extra | None  # seed and statistics, once the answer is there


class Deleted(TypedDict):
    """An answer that is forgotten now."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


# Answers that later requests may refer to: in memory, as many as fit, the oldest go first.

MOST_ANSWERS = 1024
MOST_BYTES = 64 << 20
_OVERHEAD = 2048  # bytes of an answer besides its text, about


class Remembered(NamedTuple):
    response: ResponseObject
    conversation: Sequence[Json]  # all messages up to and with the answer, without instructions


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
        size = _OVERHEAD  # and the characters of its messages, about
        for message in answer.conversation:
            size += len(message["content"]) + len(message.get("reasoning_content") or "")
            size += sum(len(call["function"]["arguments"]) for call in message.get("tool_calls") or ())
        self._kept[answer.response["id"]] = answer, size
        self._bytes += size
        while len(self._kept) > self._most_answers or self._bytes > self._most_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed

    def find(self, key: str, param: str) -> Remembered:
        """An answer by its id, which was given in the field `param`; ApiError: it is not, or no longer, remembered."""
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


ROUTER = APIRouter(tags=["responses"], route_class=ModelRoute)


@ROUTER.post("/responses", summary="Answer (OpenAI's newer API)", response_model=ResponseObject, responses=STREAMED)
async def create(request: Request, service: Served, body: ResponsesBody) -> Response:
    """The model's answer, as one object or as a stream of events."""
    memory: ResponseMemory = request.app.state.responses
    before = _before(body, memory)
    exchange = await Exchange.chat(service, body.answered(before))
    with exchange.answers.handing_over():
        reply = ResponseReply(body, before, exchange, memory)
    return await respond(request, exchange.answers, reply, body.stream, NAMED)


@ROUTER.post("/responses/input_tokens", summary="Count the tokens of a prompt")
async def input_tokens(request: Request, service: Served, body: ResponsePrompt) -> InputTokens:
    """How long the prompt would be; nothing is generated."""
    fields = body.fields(_before(body, request.app.state.responses))
    return {"object": "response.input_tokens", "input_tokens": await prompt_length(service, fields)}


@ROUTER.get("/responses/{response_id}", summary="An earlier answer")
async def retrieve(request: Request, response_id: str) -> ResponseObject:
    """As long as it is remembered."""
    memory: ResponseMemory = request.app.state.responses
    return memory.find(response_id, "response_id").response


@ROUTER.delete("/responses/{response_id}", summary="Forget an answer")
async def delete(request: Request, response_id: str) -> Deleted:
    """Answers that go on from it keep what they took over."""
    request.app.state.responses.forget(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def _before(body: ResponsePrompt, memory: ResponseMemory) -> Sequence[Json]:
    """The conversation that a request goes on with."""
    if body.previous_response_id is None:
        return ()
    return memory.find(body.previous_response_id, "previous_response_id").conversation


class ResponseReply:
    """One answer under way."""

    def __init__(self, body: ResponsesBody, before: Sequence[Json], exchange: Exchange, memory: ResponseMemory) -> None:
        self._body, self._before, self._exchange, self._memory = body, before, exchange, memory
        self._answer, self._generation = exchange.choices[0], exchange.choices[0].generation
        self._items = Items()
        sampling = self._generation.request.sampling
        wanted, chosen = body.text.format if body.text is not None else None, body.tool_choice
        text = {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True)
        self.response: ResponseObject = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time()),
            "completed_at": None,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": exchange.name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": body.reasoning.model_dump() if body.reasoning is not None else None,
            "store": body.store is not False,
            "temperature": sampling.temperature,
            "text": {"format": text},
            "tool_choice": chosen.model_dump() if isinstance(chosen, NamedTool) else chosen or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "timings": None,
            "localspec": None,
        }

    def add(self, news: News) -> list[Json]:
        """Takes what a pass brings; the events of the items."""
        wanted = news.parts and self._body.wants_log_probs
        scores = chat_log_probs(self._answer.new_log_probs(), self._exchange.model) if wanted else ()
        return self._items.add(news.parts, scores)

    def finish(self) -> list[Json]:
        """Completes the answer and remembers it; the last events of its items."""
        answer, response = self._answer, self.response
        cut = answer.finish == "length"
        events = self._items.finish("incomplete" if cut else "completed")
        response["status"] = "incomplete" if cut else "completed"
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        response["completed_at"] = None if cut else int(time())
        response["output"] = self._items.output
        stats, thinking = self._generation.stats, reasoning_tokens([answer.reasoning], self._exchange.model)
        response["usage"] = {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.reused_tokens, "cache_write_tokens": 0},
            "output_tokens": stats.generated,
            "output_tokens_details": {"reasoning_tokens": min(thinking, stats.generated)},
            "total_tokens": stats.prompt_tokens + stats.generated,
        }
        response["timings"] = timings(stats)
        response["localspec"] = extra(self._exchange.engine, self._generation)
        if response["store"]:
            said = {"role": "assistant", "content": answer.content, "tool_calls": answer.calls}
            said["reasoning_content"] = answer.reasoning
            self._memory.keep(Remembered(response, (*self._before, *self._body.added(), said)))
        return events

    async def collected(self) -> ResponseObject:
        async for news in self._exchange.news():
            if news is not None:
                self.add(news)
        self.finish()
        return self.response

    async def chunks(self, silence: float) -> AsyncIterator[Json | None]:
        """Events in OpenAI's order."""
        numbers = count()
        async for event in self._events(silence):
            yield None if event is None else event | {"sequence_number": next(numbers)}

    async def _events(self, silence: float) -> AsyncIterator[Json | None]:
        for kind in ("response.created", "response.in_progress"):
            yield self._about(kind)
        timed = bool(self._body.timings_per_token)
        try:
            async for news in self._exchange.stream(silence, self._body.return_progress):
                if news is None:
                    yield None
                elif isinstance(news, PromptProgress):
                    yield self._about("response.in_progress") | {"prompt_progress": news}
                else:
                    for event in self.add(news):
                        yield event | self._timings() if timed and event["type"].endswith(".delta") else event
            for event in self.finish():
                yield event
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            self.response["status"] = "failed"
            self.response["error"] = {"code": "server_error", "message": told(error).message}
        yield self._about(f"response.{self.response['status']}") | (self._timings() if timed else {})

    def _about(self, kind: str) -> Json:
        return {"type": kind, "response": self.response}

    def _timings(self) -> Json:
        return {"timings": timings(self._generation.stats)}


class Items:
    """OpenAI's output items, put together from the parts of an answer; `status` says whether the last is open."""

    def __init__(self) -> None:
        self.output: list[Any] = []  # `ItemOutput`, each

    def add(self, parts: Sequence[Part], log_probs: Sequence[TokenLogProbs] = ()) -> list[Json]:
        """Takes parts, and log-probabilities of the text among them; returns the events they bring."""
        events: list[Json] = []
        for part in parts:
            if isinstance(part, CallBegun):
                own = {"call_id": part.id, "name": part.name, "arguments": ""}
                events += self._begin("function_call", f"fc_{uuid4().hex}", **own)
            elif isinstance(part, CallArguments):
                self.output[-1]["arguments"] += part.text
                events.append(self._about("function_call_arguments.delta", delta=part.text))
            elif isinstance(part, CallEnded):
                events += self.close("completed" if part.whole else "incomplete")
            elif isinstance(part, Reasoning):
                events += self._add_text("reasoning", part.text)
            else:
                events += self._add_text("message", part.text, log_probs)
                log_probs = ()
        return events

    def close(self, status: Status) -> list[Json]:
        """Ends the open item."""
        item = self.output[-1] if self.output else None
        if item is None or item["status"] != "in_progress":
            return []
        item["status"] = status
        if item["type"] == "function_call":
            last = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._about("function_call_arguments.done", **last)]
        else:
            (part,) = item["content"]
            said = {name: part[name] for name in ("text", "logprobs") if name in part}
            events = [
                self._about_text(f"{part['type']}.done", **said),
                self._about_text("content_part.done", part=part),
            ]
        return [*events, self._about_item("done")]

    def finish(self, status: Status) -> list[Json]:
        """Ends the answer; one that says nothing has an empty message."""
        events = [] if self.output else self._add_text("message", "")
        return [*events, *self.close(status)]

    def _add_text(self, kind: str, text: str, log_probs: Sequence[TokenLogProbs] = ()) -> list[Json]:
        """Text of a message, or of a thought."""
        events: list[Json] = []
        item = self.output[-1] if self.output else None
        if item is None or item["type"] != kind or item["status"] != "in_progress":
            events = self._begin(kind, f"{_IDS[kind]}_{uuid4().hex}", **_EMPTY[kind])
            item = self.output[-1]
            item["content"] = [deepcopy(_EMPTY_PARTS[kind])]
            events.append(self._about_text("content_part.added", part=_EMPTY_PARTS[kind]))
        part = item["content"][0]
        part["text"] += text
        if kind == "message":
            part["logprobs"] += log_probs
        if text:
            more = {"logprobs": log_probs} if kind == "message" else {}
            events.append(self._about_text(f"{part['type']}.delta", delta=text, **more))
        return events

    def _begin(self, kind: str, key: str, **fields: Any) -> list[Json]:
        events = self.close("completed")
        self.output.append({"id": key, "type": kind, **fields, "status": "in_progress"})
        return [*events, self._about_item("added")]

    def _about(self, kind: str, **fields: Any) -> Json:
        at = len(self.output) - 1
        return {"type": f"response.{kind}", "output_index": at, "item_id": self.output[at]["id"], **fields}

    def _about_text(self, kind: str, **fields: Any) -> Json:
        return self._about(kind, content_index=0, **fields)

    def _about_item(self, kind: str) -> Json:
        item = deepcopy(self.output[-1])
        return {"type": f"response.output_item.{kind}", "output_index": len(self.output) - 1, "item": item}


_EMPTY: dict[str, Json] = {"message": {"role": "assistant", "content": []}, "reasoning": {"summary": [], "content": []}}
"""What an item begins with."""
_EMPTY_PARTS: dict[str, Json] = {
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text", "text": ""},
}
_IDS = {"message": "msg", "reasoning": "rs"}
