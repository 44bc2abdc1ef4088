"""The answers of one request, read from the event loop while the engine's thread writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import anyio

from localspec.chat.reply.reply import Content, Part
from localspec.engine.request import Event, FinishReason, TokenLogProb
from localspec.errors import LocalspecError
from localspec.runtime.generation import Generation
from localspec.server.chat.shapes import FinishWord
from localspec.server.http.errors import ApiError, from_localspec


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

        Raises:
            ApiError: a generation failed, or the server ended it (`stop`).
        """
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


FINISH_WORDS: dict[FinishReason, FinishWord] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.CANCELLED: "stop",
    FinishReason.ERROR: "stop",
}
"""OpenAI's `finish_reason` for ours."""


class OneAnswer:
    """One answer as it is read: the log-probabilities of what it says, and why it ended."""

    def __init__(self, generation: Generation, end_tokens: frozenset[int]) -> None:
        self.generation = generation
        self._ends = end_tokens | generation.request.stop_tokens
        self.log_probs: list[TokenLogProb] = []
        """Not yet handed out; none of tokens that end it."""

    def take(self, event: Event) -> list[Part]:
        """Reads an event; returns what it brings."""
        self.log_probs += [one for one in event.log_probs if one.token not in self._ends]
        return [Content(event.text)] if event.text else []

    def new_log_probs(self) -> list[TokenLogProb]:
        """Log-probabilities that came since the last call."""
        found, self.log_probs = self.log_probs, []
        return found

    @property
    def finish(self) -> FinishWord:
        """Why it ended."""
        return FINISH_WORDS[self.generation.finish or FinishReason.STOP]
