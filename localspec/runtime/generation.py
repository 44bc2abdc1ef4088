"""One answer under way: iterate it for events, ask it for the text, or cancel it. `Signs` tells an engine that hangs
from a slow one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, perf_counter

from localspec.engine.interfaces import Request
from localspec.engine.slot import Event, FinishReason
from localspec.engine.stats import RequestStats


class Generation:
    """Made by `Engine.submit`; one consumer reads it, any thread may cancel it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.kept = True  # whether its answer may go into the corpus; not if its chat was deleted meanwhile
        self.started = perf_counter()
        self.finish: FinishReason | None = None  # why it ended; None while it runs
        self.stats = RequestStats(prompt_tokens=len(request.prompt))
        """Live; from when it has a slot on, the engine's own."""
        self.progress: tuple[int, int] | None = None
        """Tokens of the prompt that are in the slot's cache, found there or read, and those to be there before the
        first pass; None = none was read yet."""
        self.tokens: list[int] = []  # tokens read so far
        self.cancelled = False
        self._inbox: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._arrived: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[Event]:
        """Events as they come; raises what went wrong on the engine thread."""
        while self.finish is None:
            yield self._read(self._inbox.get())

    def poll(self) -> Iterator[Event]:
        """Events that are there already, without waiting; raises as iterating does."""
        with suppress(queue.Empty):
            while self.finish is None:
                yield self._read(self._inbox.get_nowait())

    def notify(self, arrived: Callable[[], None]) -> None:
        """Has `arrived()` called on the engine thread whenever there is something to `poll`, or more of the prompt was
        read; and here, once, now."""
        self._arrived = arrived
        arrived()  # something may have come before there was a listener

    def _read(self, item: Event | BaseException) -> Event:
        if isinstance(item, BaseException):
            self.finish = FinishReason.ERROR
            raise item
        self.stats = item.stats
        self.tokens += item.tokens
        self.finish = item.finish
        return item

    @property
    def read(self) -> int:
        """Tokens of the prompt that were computed for this answer by now."""
        reused = self.stats.reused_tokens
        cached, _ = self.progress or (0, 0)
        return max(0, (self.stats.prompt_tokens if self.stats.passes else cached) - reused)

    def prefilled(self, done: int, total: int) -> None:
        """Engine thread only: so many tokens of the prompt are cached, of those to be cached before the first pass."""
        self.progress = done, total
        if self.request.on_prefill is not None:
            self.request.on_prefill(done, total)
        self._arrived()

    def text(self) -> str:
        """Waits for the end and returns the text of all events not yet read."""
        return "".join(event.text for event in self)

    def cancel(self) -> None:
        """Asks the engine to stop within one pass; the last event then says `cancelled`."""
        self.cancelled = True

    def deliver(self, item: Event | BaseException) -> None:
        """Engine thread only: hands over an event, or the error that ended it."""
        self._inbox.put(item)
        self._arrived()


class Signs:
    """What `alive` has seen. Written by one thread; any may look."""

    def __init__(self) -> None:
        self._last = monotonic()
        self._faults = 0  # pages that were read from disk
        self.longest = 0.0  # seconds of the longest silence that ended

    def begin(self) -> None:
        self._last = monotonic()

    def alive(self) -> None:
        now = monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last = now

    @property
    def silent(self) -> float:
        """Seconds since they last did something; pages that were read meanwhile are something, too."""
        faults = _faults()
        if faults != self._faults:  # a large model's first pass may read its file for minutes
            self._faults = faults
            self.begin()
        return monotonic() - self._last


def _faults() -> int:
    """Pages that this process had to wait for; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
