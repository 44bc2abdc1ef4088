"""One answer to a conversation, taken apart as it streams: what the Messages and the Responses API have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from localspec.chat.reply.reply import Part
from localspec.engine.request import FinishReason
from localspec.runtime.engine import Engine
from localspec.server.chat.answers import Answers
from localspec.server.chat.chat import Choice
from localspec.server.chat.chat_fields import ChatFields
from localspec.server.chat.prepare import bind, chat_asked, prepared
from localspec.server.chat.service import Service


class Exchange:
    """Make one with `begin`; its maker reads `parts` to the end, or closes `answers`."""

    def __init__(self, model: str, engine: Engine, answers: Answers, choice: Choice) -> None:
        self.model = model
        """Name of the model that answers."""
        self.engine = engine
        self.answers = answers
        self.choice = choice
        self.generation = choice.generation

    @classmethod
    async def begin(cls, service: Service, fields: ChatFields) -> Exchange:
        """Sends a conversation to its model.

        Raises:
            ApiError: it cannot be answered.
        """
        lease = await service.lease(fields.model)
        model, engine = lease.name, lease.engine
        turn, asked = await prepared(lease, partial(chat_asked, fields))
        await bind(service, lease, [asked])
        answers = service.answer(lease, asked.starts(engine, 1))
        with answers.handing_over():
            choice = Choice(turn, asked, answers.generations[0], engine.loaded.model.end_tokens)
        return cls(model, engine, answers, choice)

    async def parts(self, silence: float | None = None) -> AsyncIterator[list[Part] | None]:
        """What each pass brings, to the end; None whenever `silence` seconds brought nothing.

        Raises:
            ApiError: the answer failed, or the server ends.
        """
        async for arrival in self.answers.events(silence):
            yield None if arrival is None else self.choice.take(arrival.event)

    def stop_string(self) -> str | None:
        """The stop string that ended the answer; None = something else did."""
        request, tokens, model = self.generation.request, self.generation.tokens, self.engine.loaded.model
        if not request.stop or self.generation.finish is not FinishReason.STOP or tokens[-1] in model.end_tokens:
            return None
        pieces = [model.piece(token, token in request.preserved) for token in tokens[request.min_tokens :]]
        text = b"".join(pieces).decode("utf-8", "replace")
        found = [(at, stop) for stop in request.stop if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None
