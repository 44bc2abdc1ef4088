"""One request's answers, taken apart as they stream: what all APIs that answer have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from localspec.chat.reply.dialect import Turn
from localspec.chat.reply.reply import Parser, Part
from localspec.engine.slot import Event, FinishReason
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import Answers, OneAnswer
from localspec.server.chat.chat_fields import ChatFields, CompletionFields
from localspec.server.chat.prepare import TOOLS, Asked, bound, chat_asked, prepared, text_asked
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import PromptProgress
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
        self.choices = [OneAnswer(one, ends, self._parser(turn)) for one in answers.generations]
        """All of the first prompt, then of the second, ..."""

    def _parser(self, turn: Turn | None) -> Parser | None:
        if turn is None:
            return None
        return turn.parser(self.asked[0].prompt, lone=self.asked[0].field == TOOLS)

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
