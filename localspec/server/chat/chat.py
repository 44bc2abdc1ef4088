"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from localspec.chat.reply.dialect import Turn
from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.engine.slot import Event, FinishReason
from localspec.runtime.generation import Generation
from localspec.server.chat.answers import Answers, OneAnswer
from localspec.server.chat.chat_fields import ChatFields
from localspec.server.chat.prepare import TOOLS, Asked, bound, chat_asked, prepared
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import (
    AnswerMessage,
    Call,
    CallDelta,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    Delta,
    FinishWord,
    Function,
    FunctionDelta,
    PromptProgress,
    Reading,
    Usage,
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

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

ROUTER = APIRouter(tags=["chat"], route_class=ModelRoute)
_STRING = {"type": "string"}
_EVENT = {"type": "object", "properties": {"event": _STRING, "data": _STRING}, "required": ["data"]}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""For the OpenAPI document: with `stream` the same path answers with events."""


@ROUTER.post("/chat/completions", summary="Answer a conversation", response_model=ChatCompletion, responses=STREAMED)
async def chat_completions(request: Request, fields: ChatFields) -> Response:
    """OpenAI's chat completions, with llama-server's `timings` and what came of the drafts."""
    service: Service = request.app.state.service
    lease = await service.lease(fields.model)
    name, engine = lease.name, lease.engine
    turn, asked = await prepared(lease, partial(chat_asked, fields))
    (asked,) = await bound(service, lease, [asked])
    answers = service.answer(lease, asked.starts(engine, fields.choices))
    with answers.handing_over():
        reply = ChatReply(name, engine, fields, turn, asked, answers)
    if fields.stream:
        return EventStream(answers, openai_lines(reply.chunks(service.settings.ping_seconds), request.url.path))
    return await whole(request, answers, reply.collected)


class Choice(OneAnswer):
    """One answer of a conversation: its parts, too."""

    def __init__(self, turn: Turn, asked: Asked, generation: Generation, end_tokens: frozenset[int]) -> None:
        super().__init__(generation, end_tokens)
        self._parser = turn.parser(asked.prompt, lone=asked.form is None or asked.form.field == TOOLS)
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[Call] = []
        """The last may be incomplete."""
        self.ended = False
        self._cut = False  # within a call

    def take(self, event: Event) -> list[Part]:
        """Reads an event; returns what it brings. The last one also brings what was held back."""
        super().take(event)
        parts = self._parser.push(event.text)
        if event.finish is not None:
            parts += self._parser.finish(cut=event.finish in (FinishReason.LENGTH, FinishReason.CONTEXT))
            self.ended = True
        elif self._parser.done:
            self.generation.cancel()  # the one call that was wanted is there
        for part in parts:
            if isinstance(part, Content):
                self.content.append(part.text)
            elif isinstance(part, Reasoning):
                self.reasoning.append(part.text)
            elif isinstance(part, CallBegun):
                self.calls.append(Call(id=part.id, type="function", function=Function(name=part.name, arguments="")))
            elif isinstance(part, CallArguments):
                self.calls[-1].function.arguments += part.text
            else:
                self._cut = not part.whole
        return parts

    @property
    def finish(self) -> FinishWord:
        """Why it ended."""
        reason = self.generation.finish or FinishReason.STOP
        if self.calls and not self._cut and reason in (FinishReason.STOP, FinishReason.CANCELLED):
            return "tool_calls"
        return super().finish

    def message(self) -> AnswerMessage:
        """The whole answer."""
        text = "".join(self.content)
        message = AnswerMessage(role="assistant", content=text if text or not self.calls else None, refusal=None)
        if self.reasoning:
            message.reasoning_content = "".join(self.reasoning)
        if self.calls:
            message.tool_calls = self.calls
        return message


class ChatReply:
    """The answers of a request in the chat API's shape."""

    def __init__(
        self, name: str, engine: Engine, fields: ChatFields, turn: Turn, asked: Asked, answers: Answers
    ) -> None:
        self._engine, self._fields, self._answers = engine, fields, answers
        self._model, self._n_prompt = engine.loaded.model, len(asked.prompt)
        self.choices = [Choice(turn, asked, one, self._model.end_tokens) for one in answers.generations]
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time()),
            "model": name,
            "system_fingerprint": fingerprint(engine),
        }

    async def collected(self) -> Response:
        """The whole answer, once it is there."""
        async for arrival in self._answers.events():
            if arrival is not None:
                self.choices[arrival.index].take(arrival.event)
        generations = self._answers.generations
        return json_response(
            ChatCompletion(
                **self._head,
                object="chat.completion",
                choices=[self._whole(index, choice) for index, choice in enumerate(self.choices)],
                usage=self._usage(),
                timings=timings(summed([generation.stats for generation in generations])),
                localspec=[extra(self._engine, generation) for generation in generations],
            )
        )

    def _usage(self) -> Usage:
        thoughts = ["".join(choice.reasoning) for choice in self.choices]
        return usage(self._answers.generations, [self._n_prompt], reasoning_tokens(thoughts, self._model))

    def _whole(self, index: int, choice: Choice) -> ChatChoice:
        wanted = self._fields.logprobs
        found = chat_log_probs(choice.log_probs, self._model) if wanted else None
        return ChatChoice(index=index, message=choice.message(), logprobs=found, finish_reason=choice.finish)

    async def chunks(self, silence: float) -> AsyncIterator[ChatChunk | None]:
        """The stream: roles, what comes as it comes, a finish chunk a choice, usage if it was asked for."""
        for index in range(len(self.choices)):
            yield self._chunk(ChunkChoice(index=index, delta=Delta(role="assistant", content=None), finish_reason=None))
        events = self._answers.events
        progress = Reading(self._answers.generations[0]) if self._fields.return_progress else None
        async for arrival in events(silence) if progress is None else progress.followed(events, silence):
            if arrival is None:
                yield None
                continue
            if isinstance(arrival, PromptProgress):
                chunk = self._chunk(ChunkChoice(index=0, delta=Delta(content=None), finish_reason=None))
                chunk.prompt_progress = arrival
                yield chunk
                continue
            choice = self.choices[arrival.index]
            begun = len(choice.calls)
            for delta in self._deltas(choice.take(arrival.event), begun):
                yield self._content_chunk(arrival.index, choice, delta)
            if choice.ended:
                if choice.log_probs:
                    yield self._content_chunk(arrival.index, choice, Delta(content=""))
                yield self._last_chunk(arrival.index, choice)
        if self._fields.wants_usage:
            chunk = self._chunk()
            chunk.usage = self._usage()
            chunk.timings = timings(summed([generation.stats for generation in self._answers.generations]))
            yield chunk

    def _deltas(self, parts: list[Part], begun: int) -> list[Delta]:
        """What is new, `begun` being how many tool calls have begun before."""
        deltas = []
        for part in parts:
            if isinstance(part, Content):
                deltas.append(Delta(content=part.text))
            elif isinstance(part, Reasoning):
                deltas.append(Delta(reasoning_content=part.text))
            elif isinstance(part, CallBegun):
                function = FunctionDelta(name=part.name, arguments="")
                call = CallDelta(index=begun, id=part.id, type="function", function=function)
                deltas.append(Delta(tool_calls=[call]))
                begun += 1
            elif isinstance(part, CallArguments):
                call = CallDelta(index=begun - 1, function=FunctionDelta(arguments=part.text))
                deltas.append(Delta(tool_calls=[call]))
        return deltas

    def _content_chunk(self, index: int, choice: Choice, delta: Delta) -> ChatChunk:
        told = ChunkChoice(index=index, delta=delta, finish_reason=None)
        if self._fields.logprobs and choice.log_probs:
            told.logprobs = chat_log_probs(choice.new_log_probs(), self._model)
        chunk = self._chunk(told)
        if self._fields.timings_per_token:
            chunk.timings = timings(choice.generation.stats)
        return chunk

    def _last_chunk(self, index: int, choice: Choice) -> ChatChunk:
        chunk = self._chunk(ChunkChoice(index=index, delta=Delta(), finish_reason=choice.finish))
        chunk.timings = timings(choice.generation.stats)
        chunk.localspec = [extra(self._engine, choice.generation)]
        return chunk

    def _chunk(self, *choices: ChunkChoice) -> ChatChunk:
        return ChatChunk(**self._head, object="chat.completion.chunk", choices=list(choices))
