"""One answer, taken apart as it streams: what the Messages, the Responses and Ollama's API have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from pydantic_core import from_json

from localspec.chat.reply.reply import Part
from localspec.engine.slot import Event, FinishReason, TokenLogProb
from localspec.llama.model import Model
from localspec.runtime.generation import Generation
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import Answers, OneAnswer
from localspec.server.chat.chat import Choice
from localspec.server.chat.chat_fields import ChatFields
from localspec.server.chat.completions import CompletionFields, text_asked
from localspec.server.chat.prepare import bound, chat_asked, prepared
from localspec.server.chat.service import Service
from localspec.server.chat.shapes import FinishWord
from localspec.types import NO_TOKENS, Tokens


class Answering:
    """An answer under way, whose maker reads it to the end, or closes `answers`. Make one by `begin` of its kind."""

    def __init__(self, lease: Lease, answers: Answers, choice: OneAnswer) -> None:
        self.model = lease.name
        """Name of the model that answers."""
        self.engine = lease.engine
        self.answers = answers
        self.generation = answers.generations[0]
        self._choice = choice

    async def parts(self, silence: float | None = None) -> AsyncIterator[list[Part] | None]:
        """What each pass brings, to the end; None whenever `silence` seconds brought nothing."""
        async for arrival in self.answers.events(silence):
            yield None if arrival is None else self._choice.take(arrival.event)

    async def events(self, silence: float | None = None) -> AsyncIterator[Event | None]:
        """The same as the engine tells it."""
        async for arrival in self.answers.events(silence):
            if arrival is not None:
                self._choice.take(arrival.event)
            yield None if arrival is None else arrival.event

    @property
    def finish(self) -> FinishWord:
        """Why it ended."""
        return self._choice.finish

    def new_log_probs(self) -> list[TokenLogProb]:
        """Log-probabilities that came since the last call."""
        return self._choice.new_log_probs()

    def stop_string(self) -> str | None:
        """The stop string that ended it; None = something else did."""
        return stop_string(self.generation, self.engine.loaded.model)


class Exchange(Answering):
    """An answer to a conversation."""

    def __init__(self, lease: Lease, answers: Answers, choice: Choice) -> None:
        super().__init__(lease, answers, choice)
        self.choice = choice

    @classmethod
    async def begin(
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
        (asked,) = await bound(service, lease, [asked])
        answers = service.answer(lease, asked.starts(lease.engine, 1))
        with answers.handing_over():
            return cls(
                lease, answers, Choice(turn, asked, answers.generations[0], lease.engine.loaded.model.end_tokens)
            )


class Continuation(Answering):
    """A text that goes on."""

    @classmethod
    async def begin(cls, service: Service, fields: CompletionFields, lease: Lease | None = None) -> Continuation:
        """Sends a text to its model: one prompt; arguments and errors as of an exchange."""
        lease = lease or await service.lease(fields.model)
        asked = await bound(service, lease, await prepared(lease, partial(text_asked, fields, service)))
        answers = service.answer(lease, asked[0].starts(lease.engine, 1))
        return cls(lease, answers, OneAnswer(answers.generations[0], lease.engine.loaded.model.end_tokens))


def stop_string(generation: Generation, model: Model) -> str | None:
    """The stop string that ended an answer; None = something else did."""
    request, tokens = generation.request, generation.tokens
    if not request.stop or generation.finish is not FinishReason.STOP or tokens[-1] in model.end_tokens:
        return None
    pieces = [model.piece(token, token in request.preserved) for token in tokens[request.min_tokens :]]
    text = b"".join(pieces).decode("utf-8", "replace")
    found = [(at, stop) for stop in request.stop if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def arguments_of(text: str) -> dict[str, Any]:
    """A call's arguments as data: as far as they are complete, and `{}` if they are no JSON."""
    try:
        found = from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
