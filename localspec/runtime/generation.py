"""One answer under way: iterate it for events, ask it for the text, or cancel it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from time import perf_counter

from localspec.engine.request import Event, FinishReason, Request
from localspec.engine.stats import RequestStats


class Generation:
    """Made by `Engine.submit`; one consumer reads it, any thread may cancel it."""

    def __init__(self, request: Request, on_prefill: Callable[[int, int], None] | None = None) -> None:
        self.request = request
        self.on_prefill = on_prefill
        """Called on the engine thread while the prompt is prefilled: (tokens done, tokens in all)."""
        self.started = perf_counter()
        self.finish: FinishReason | None = None
        """Why it ended; None while it runs."""
        self.stats = RequestStats(prompt_tokens=len(request.prompt))
        self.tokens: list[int] = []
        """Tokens read so far."""
        self.cancelled = False
        self._inbox: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Event]:
        """Events as they come.

        Raises:
            LocalspecError: what went wrong on the engine thread.
        """
        while self.finish is None:
            item = self._inbox.get()
            if isinstance(item, BaseException):
                self.finish = FinishReason.ERROR
                raise item
            self.stats = item.stats
            self.tokens += item.tokens
            self.finish = item.finish
            yield item

    def text(self) -> str:
        """Waits for the end and returns the text of all events not yet read."""
        return "".join(event.text for event in self)

    def cancel(self) -> None:
        """Asks the engine to stop within one pass; the last event then says `cancelled`."""
        self.cancelled = True

    def deliver(self, item: Event | BaseException) -> None:
        """Engine thread only: hands over an event, or the error that ended it."""
        self._inbox.put(item)
