"""The answers of one request, read from the event loop while the engine's thread writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from pydantic_core import from_json

from localspec.chat.reply.reply import AnswerParser, Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.engine.slot import Event, FinishReason, TokenLogProb
from localspec.errors import LocalspecError
from localspec.runtime.generation import Generation
from localspec.server.http.errors import ApiError, from_localspec

if TYPE_CHECKING:
    from localspec.server.chat.shapes import FinishWord, ToolCalled


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event and whose it is."""

    index: int
    """Of the choice."""
    event: Event


class Answers:
    """Generations of one request, merged as their events come. Belongs to the event loop it was made on.

    Nothing polls: the engine's thread wakes the loop when it has delivered an event. The maker of one closes it,
    whatever happens; then what still runs is cancelled, and its slot is free within a pass. Until then the model may
    be used to spell and to count what came.
    """

    def __init__(
        self,
        generations: Sequence[Generation],
        ended: Callable[[Generation], None] = lambda _: None,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            generations: one for each choice; there may be none.
            ended: called on the event loop, once for each of them, when its last event has come, read or not.
            over: called on the event loop, once, when all have ended and `close` was called: the model is free.
        """
        self.generations = tuple(generations)
        self._ended, self._over = ended, over
        self.closed = False
        """The reader wants no more, having read all or not."""
        self._running = set(range(len(generations)))
        self._arrived: asyncio.Queue[Arrival | ApiError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._unread = set(self._running)  # choices whose last event was not read
        for index, generation in enumerate(generations):
            generation.notify(partial(self._wake, index))

    async def events(self, silence: float | None = None) -> AsyncIterator[Arrival | None]:
        """Events of all choices as they come, to the last one; None whenever `silence` seconds brought nothing.
        ApiError: a generation failed, or the server ended it (`stop`)."""
        while self._unread:
            item: Arrival | ApiError | None = None
            if not self._arrived.empty():
                item = self._arrived.get_nowait()
            else:
                with anyio.move_on_after(silence):
                    item = await self._arrived.get()
            if isinstance(item, ApiError):
                raise item
            if item is not None and item.event.finish is not None:
                self._unread.discard(item.index)
            yield item

    def stop(self, error: ApiError) -> None:
        """Ends the request with an error for its reader, and what still runs."""
        self._arrived.put_nowait(error)
        self._cancel()

    def close(self) -> None:
        """The reader wants no more: cancels what still runs. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._cancel()
        if not self._running:
            self._over()

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Closes them if what is to read them cannot be made."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _cancel(self) -> None:
        for index in self._running:
            self.generations[index].cancel()

    def _wake(self, index: int) -> None:
        """Engine thread: something has arrived."""
        with suppress(RuntimeError):  # the loop is closed: nothing waits for it any more
            self._loop.call_soon_threadsafe(self._take, index)

    def _take(self, index: int) -> None:
        """Event loop: reads what has arrived."""
        if index not in self._running:
            return
        generation = self.generations[index]
        try:
            for event in generation.poll():
                self._arrived.put_nowait(Arrival(index, event))
        except LocalspecError as error:
            self._arrived.put_nowait(from_localspec(error))
        except Exception as error:  # noqa: BLE001 - a fault of the engine, told to the client without its insides
            self._arrived.put_nowait(ApiError(500, "server_error", f"The engine failed: {type(error).__name__}."))
        if generation.finish is not None:
            self._running.discard(index)
            self._ended(generation)
            if self.closed and not self._running:
                self._over()


class Joined:
    """What one answer brings, joined: all up to its first events at once, later ones at most so many times a second.

    Belongs to the event loop it was made on, which the engine's thread wakes only while it waits for an event: a loop
    that wakes takes the interpreter from that thread.
    """

    def __init__(self, generation: Generation, per_second: float) -> None:
        self.generation = generation
        self._pause = 1 / per_second
        self._loop = asyncio.get_running_loop()
        self._armed = False
        self._told = generation.progress
        self._woken, self._cancelled = asyncio.Event(), asyncio.Event()
        generation.notify(self._wake)

    async def batches(self) -> AsyncIterator[list[Event]]:
        """Events to the last one; none where only more of the prompt was read.

        Raises:
            LocalspecError: what went wrong on the engine's thread.
        """
        while self.generation.finish is None:
            events, failure = await self._next()
            if events or failure is None:
                yield events
            if failure is not None:
                raise failure
            if events and self.generation.finish is None:
                with anyio.move_on_after(self._pause):
                    await self._cancelled.wait()

    def cancel(self) -> None:
        """Asks for the end, whose event comes at once."""
        self.generation.cancel()
        self._cancelled.set()

    async def _next(self) -> tuple[list[Event], LocalspecError | None]:
        events, failure = list[Event](), None
        while True:
            self._woken.clear()
            self._armed = True  # before the look: what comes after it wakes
            try:
                for event in self.generation.poll():
                    events.append(event)
            except LocalspecError as error:
                failure = error
            if events or failure is not None or self.generation.progress != self._told:
                self._told = self.generation.progress
                self._armed = False
                return events, failure
            await self._woken.wait()

    def _wake(self) -> None:
        """Engine thread: something has arrived."""
        if self._armed:
            self._armed = False
            with suppress(RuntimeError):  # the loop is closed: nothing waits for it any more
                self._loop.call_soon_threadsafe(self._woken.set)


FINISH_WORDS: dict[FinishReason, FinishWord] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.CANCELLED: "stop",
    FinishReason.ERROR: "stop",
}
"""OpenAI's `finish_reason` for ours."""


class OneAnswer:
    """One answer as it is read: its parts, the log-probabilities of what it says, and why it ended."""

    def __init__(self, generation: Generation, end_tokens: frozenset[int], parser: AnswerParser | None = None) -> None:
        """`parser`: that of a conversation's answer; None = a text that goes on."""
        self.generation = generation
        self._ends = end_tokens | generation.request.stop_tokens
        self._parser = parser
        self.log_probs: list[TokenLogProb] = []
        """Not yet handed out; none of tokens that end it."""
        self.content, self.reasoning = "", ""
        self.calls: list[ToolCalled] = []
        """The last may be incomplete."""
        self._cut = False  # within a call

    def take(self, event: Event) -> list[Part]:
        """Reads an event; returns what it brings. The last one also brings what was held back."""
        self.log_probs += [one for one in event.log_probs if one.token not in self._ends]
        parts = self._parsed(event)
        for part in parts:
            if isinstance(part, Content):
                self.content += part.text
            elif isinstance(part, Reasoning):
                self.reasoning += part.text
            elif isinstance(part, CallBegun):
                self.calls.append({"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}})
            elif isinstance(part, CallArguments):
                self.calls[-1]["function"]["arguments"] += part.text
            else:
                self._cut = not part.whole
        return parts

    def _parsed(self, event: Event) -> list[Part]:
        if self._parser is None:
            return [Content(event.text)] if event.text else []
        parts = self._parser.push(event.text)
        if event.finish is not None:
            parts += self._parser.finish(cut=event.finish in (FinishReason.LENGTH, FinishReason.CONTEXT))
        elif self._parser.done:
            self.generation.cancel()  # the one call that was wanted is there
        return parts

    def new_log_probs(self) -> list[TokenLogProb]:
        """Log-probabilities that came since the last call."""
        found, self.log_probs = self.log_probs, []
        return found

    @property
    def finish(self) -> FinishWord:
        """Why it ended."""
        reason = self.generation.finish or FinishReason.STOP
        if self.calls and not self._cut and reason in (FinishReason.STOP, FinishReason.CANCELLED):
            return "tool_calls"
        return FINISH_WORDS[reason]


def arguments_of(text: str) -> dict[str, Any]:
    """A call's arguments as data: as far as they are complete, and `{}` if they are no JSON."""
    try:
        found = from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
