"""/v1/chat/completions and /v1/completions, and what all APIs that answer share: one request's answers, taken apart as
they stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter, time
from typing import Any, NamedTuple
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from localspec import __version__
from localspec.chat.reply.dialect import ReplyTurn
from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.engine.slot import Event, FinishReason, TokenLogProb
from localspec.llama.model import Model
from localspec.runtime.generation import Generation
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import (
    AnswerMessage,
    Answers,
    ChatChoice,
    ChatCompletion,
    ChatLogProbs,
    Offsets,
    OneAnswer,
    PromptProgress,
    TextChoice,
    TextCompletion,
    TextLogProbs,
    chat_log_probs,
    extra,
    joined,
    prompt_log_probs,
    reasoning_tokens,
    text_log_probs,
    timings,
    usage,
)
from localspec.server.chat.fields import ChatFields, CompletionFields, Json
from localspec.server.chat.prepare import TOOLS, AskedPrompt, chat_asked, each_prompt, prepared, text_asked
from localspec.server.chat.service import Service
from localspec.server.http.output import OPENAI, leaving, respond
from localspec.server.http.reading import ModelRoute
from localspec.types import NO_TOKENS, Tokens

_LOOK_SECONDS = 0.25  # between two looks at how far a prompt is read


class News(NamedTuple):
    """What one pass brings."""

    number: int  # of the choice
    event: Event
    parts: list[Part]


class Exchange:
    """Answers under way, whose maker reads them to the end, or closes `answers`."""

    def __init__(
        self, lease: Lease, asked: Sequence[AskedPrompt], answers: Answers, turn: ReplyTurn | None = None
    ) -> None:
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
        """Sends a conversation to its model. `lease`: on the model that is to answer, taken over; None = the fields say
        it; `said`: tokens that the conversation goes on from."""
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
        cls, service: Service, lease: Lease, asked: list[AskedPrompt], choices: int, turn: ReplyTurn | None = None
    ) -> Exchange:
        grammar = asked[0].grammar
        if grammar is not None:  # of all prompts, as are the options
            try:
                options = replace(asked[0].options, grammar=await service.grammar(lease.engine, grammar))
            except BaseException:
                lease.release()
                raise
            asked = [replace(one, options=options) for one in asked]
        starts = [  # no tokenizing: they are fast. Choices share the seed and differ in the stream of random numbers
            partial(lease.engine.generate, one.prompt, one.options, stream=stream)
            for one in asked
            for stream in range(choices)
        ]
        answers = service.answer(lease, starts)
        with answers.handing_over():
            return cls(lease, asked, answers, turn)

    async def news(self, silence: float | None = None) -> AsyncIterator[News | None]:
        """What each pass brings, to the end; None whenever `silence` seconds brought nothing."""
        async for arrival in self.answers.events(silence):
            if arrival is None:
                yield None
            else:
                index, event = arrival
                yield News(index, event, self.choices[index].take(event))

    async def stream(self, silence: float, progressing: bool | None) -> AsyncIterator[News | PromptProgress | None]:
        """The same, and with `progressing`, before the first answer's first news, how far its prompt is read."""
        generation, begun, reported, said = self.answers.generations[0], perf_counter(), -1, perf_counter()
        reading = progressing
        async for news in self.news(min(silence, _LOOK_SECONDS) if progressing else silence):
            progress = None
            if reading:
                total, cache = len(generation.request.prompt), generation.stats.reused_tokens
                processed = total if news is not None else min(total, cache + generation.read)
                if processed != reported:
                    progress = PromptProgress(total, cache, processed, int((perf_counter() - begun) * 1e3))
                    yield progress
                reading, reported = news is None, processed
            silent = not progressing or perf_counter() - said >= silence
            if news is not None or silent:
                yield news
            if news is not None or progress is not None or silent:
                said = perf_counter()

    def head(self, prefix: str, kind: str) -> Json:
        """What every answer and every chunk of OpenAI's older APIs begins with."""
        return {
            "id": f"{prefix}-{uuid4().hex}",
            "object": kind,
            "created": int(time()),
            "model": self.name,
            "system_fingerprint": f"localspec-{__version__}-{self.engine.loaded.configuration}".replace(" ", "_"),
        }  # the fingerprint changes with what may change a text at equal seed: how the passes are computed

    async def read(self) -> None:
        """Reads all answers to their end."""
        async for _ in self.news():
            pass

    def counted(self, *, extras: bool = False) -> Json:
        """What came of all answers, in OpenAI's shape and in llama-server's; `extras`: and what only localspec has to
        say of each choice."""
        generations = self.answers.generations
        thought = reasoning_tokens([answer.reasoning for answer in self.choices], self.model)
        counted: Json = {
            "usage": usage(generations, [len(one.prompt) for one in self.asked], thought),
            "timings": timings(*(one.stats for one in generations)),
        }
        return counted | ({"localspec": [extra(self.engine, one) for one in generations]} if extras else {})

    def ended(self, generation: Generation) -> Json:
        """What came of one answer."""
        return {"timings": timings(generation.stats), "localspec": [extra(self.engine, generation)]}

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
COMPLETIONS = APIRouter(tags=["completions"], route_class=ModelRoute)
_STRING = {"type": "string"}
_EVENT = {"type": "object", "properties": {"event": _STRING, "data": _STRING}, "required": ["data"]}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""For the OpenAPI document: with `stream` the same path answers with events."""


@ROUTER.post("/chat/completions", summary="Answer a conversation", response_model=ChatCompletion, responses=STREAMED)
async def chat_completions(request: Request, fields: ChatFields) -> Response:
    """OpenAI's chat completions, with llama-server's `timings` and what came of the drafts."""
    exchange = await Exchange.chat(request.app.state.service, fields)
    with exchange.answers.handing_over():
        reply = ChatReply(exchange, fields)
    return await respond(request, exchange.answers, reply, fields.stream, OPENAI)


class ChatReply:
    """The answers of a request in the chat API's shape."""

    def __init__(self, exchange: Exchange, fields: ChatFields) -> None:
        self._exchange, self._fields = exchange, fields
        self._head = exchange.head("chatcmpl", "chat.completion.chunk")

    async def collected(self) -> Json:
        await self._exchange.read()
        choices = [self._whole(index, answer) for index, answer in enumerate(self._exchange.choices)]
        return self._head | {"object": "chat.completion", "choices": choices} | self._exchange.counted(extras=True)

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

    async def chunks(self, silence: float) -> AsyncIterator[Json | None]:
        """The stream: roles, what comes as it comes, a finish chunk a choice, usage if it was asked for."""
        exchange = self._exchange
        for index in range(len(exchange.choices)):
            yield self._chunk(index, {"role": "assistant", "content": None})
        async for news in exchange.stream(silence, self._fields.return_progress):
            if news is None:
                yield None
                continue
            if isinstance(news, PromptProgress):
                yield self._chunk(0, {"content": None}) | {"prompt_progress": news}
                continue
            number, answer = news.number, exchange.choices[news.number]
            for delta in _deltas(news.parts, len(answer.calls)):
                yield self._content_chunk(number, delta)
            if news.event.finish is not None:
                if answer.log_probs:
                    yield self._content_chunk(number, {"content": ""})
                yield self._chunk(number, {}, finish_reason=answer.finish) | exchange.ended(answer.generation)
        if self._fields.wants_usage:
            yield self._head | {"choices": []} | exchange.counted()

    def _content_chunk(self, index: int, delta: Json) -> Json:
        answer = self._exchange.choices[index]
        scored = self._fields.logprobs and answer.log_probs
        chunk = self._chunk(index, delta, **({"logprobs": self._log_probs(answer)} if scored else {}))
        return chunk | ({"timings": timings(answer.generation.stats)} if self._fields.timings_per_token else {})

    def _chunk(self, index: int, delta: Json, **more: Any) -> Json:
        """What is new of a choice."""
        return self._head | {"choices": [{"index": index, "delta": delta, "finish_reason": None, **more}]}


def _deltas(parts: list[Part], calls: int) -> list[Json]:
    """What is new, `calls` being how many tool calls have begun by now, those of `parts` included."""
    at = calls - sum(isinstance(part, CallBegun) for part in parts) - 1
    deltas: list[Json] = []
    for part in parts:
        if isinstance(part, Content):
            deltas.append({"content": part.text})
        elif isinstance(part, Reasoning):
            deltas.append({"reasoning_content": part.text})
        elif isinstance(part, CallBegun):
            at += 1
            function = {"name": part.name, "arguments": ""}
            deltas.append({"tool_calls": [{"index": at, "id": part.id, "type": "function", "function": function}]})
        elif isinstance(part, CallArguments):
            deltas.append({"tool_calls": [{"index": at, "function": {"arguments": part.text}}]})
    return deltas


@COMPLETIONS.post("/completions", summary="Continue a text", response_model=TextCompletion, responses=STREAMED)
async def completions(request: Request, fields: CompletionFields) -> Response:
    """OpenAI's completions; `index` counts the choices of the first prompt, then of the second, ..."""
    service: Service = request.app.state.service
    exchange = await Exchange.text(service, fields)
    with exchange.answers.handing_over():
        scores: list[list[TokenLogProb]] = []  # of the prompts that are echoed, but for their first tokens
        if fields.echo and fields.logprobs is not None:
            with service.reading_texts():
                async with leaving(request) as left:
                    for one in exchange.asked:  # while the answers are generated
                        score = partial(exchange.engine.score, one.prompt, fields.logprobs)
                        scores.append(await service.read(exchange.name, len(one.prompt), score, left))
        reply = TextReply(exchange, fields, scores)
    return await respond(request, exchange.answers, reply, fields.stream, OPENAI)


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

    def __init__(self, exchange: Exchange, fields: CompletionFields, scores: list[list[TokenLogProb]]) -> None:
        """`scores`: of the prompts that are echoed; none = they are not asked for."""
        self._exchange, self._fields = exchange, fields
        answers: list[OneAnswer | None] = [*exchange.choices] or [None] * (len(exchange.asked) * fields.choices)
        echoes: list[tuple[str, TextLogProbs | None]] = []  # what is said of each prompt, and how likely that is
        model = exchange.model
        for number, (prompt, one) in enumerate(zip(each_prompt(fields.prompt), exchange.asked, strict=True)):
            if not fields.echo:
                echoes.append(("", None))
                continue
            text = prompt if isinstance(prompt, str) else model.detokenize(prompt, special=True)
            begun = isinstance(prompt, str) and model.add_bos and model.bos is not None
            first = None if begun else int(one.prompt[0])
            echoes.append((text, prompt_log_probs(first, scores[number], model, text) if scores else None))
        self._texts = [_Text(answer, model, *echoes[index // fields.choices]) for index, answer in enumerate(answers)]
        self._head = exchange.head("cmpl", "text_completion")

    async def collected(self) -> Json:
        await self._exchange.read()
        choices = [
            one.choice(index, one.echo + (one.answer.content if one.answer else ""), one.log_probs(), ended=True)
            for index, one in enumerate(self._texts)
        ]
        return self._chunk(*choices) | self._exchange.counted(extras=True)

    async def chunks(self, silence: float) -> AsyncIterator[Json | None]:
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

    def _last_chunk(self, index: int, text: _Text) -> Json:
        chunk = self._chunk(text.choice(index, "", None, ended=True))
        return chunk if text.answer is None else chunk | self._exchange.ended(text.answer.generation)

    def _chunk(self, *choices: TextChoice) -> Json:
        return self._head | {"choices": choices}
