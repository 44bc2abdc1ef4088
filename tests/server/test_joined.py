"""An answer's events are joined, and the engine's thread wakes the event loop only while it waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import pytest

from localspec.engine.interfaces import Request
from localspec.engine.slot import Event, FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import DecodeError
from localspec.runtime.generation import Generation
from localspec.server.chat.answers import Joined

pytestmark = pytest.mark.asyncio

NEVER = 1e-3
"""Times a second that no test waits for."""


@dataclass
class Wakes:
    """How often a loop was woken from another thread."""

    number: int = 0


def counting(monkeypatch: pytest.MonkeyPatch) -> Wakes:
    """Counts from now on."""
    found, loop = Wakes(), asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def counted(*arguments: object, **more: object) -> object:
        found.number += 1
        return wake(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return found


def generation() -> Generation:
    return Generation(Request(np.asarray([1, 2, 3], np.int32)))


def event(token: int, finish: FinishReason | None = None) -> Event:
    return Event(0, "", (token,), (), (), finish, RequestStats())


def elsewhere(one: Generation, *items: Event | BaseException) -> None:
    """Hands them over on a thread of its own, as an engine does."""

    def deliver() -> None:
        for item in items:
            one.deliver(item)

    thread = threading.Thread(target=deliver)
    thread.start()
    thread.join()


async def after(batches: AsyncIterator[list[Event]], one: Generation, *items: Event | BaseException) -> list[int]:
    """Tokens of the next batch, which somebody waits for before the items come."""
    waiting = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    elsewhere(one, *items)
    return tokens(await waiting)


def tokens(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]


async def test_a_hundred_events_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = counting(monkeypatch)
    one = generation()
    joined = Joined(one, NEVER)
    batches = joined.batches()
    assert await after(batches, one, event(0)) == [0]
    assert wakes.number == 1
    waiting = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    elsewhere(one, *(event(number) for number in range(1, 100)))
    assert wakes.number == 1
    joined.cancel()
    assert tokens(await waiting) == [*range(1, 100)]
    assert one.cancelled
    assert await after(batches, one, event(100, FinishReason.CANCELLED)) == [100]
    assert wakes.number == 2
    assert [batch async for batch in batches] == []


async def test_what_came_before_it_was_read_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = counting(monkeypatch)
    one = generation()
    elsewhere(one, event(1), event(2, FinishReason.STOP))
    assert [tokens(batch) async for batch in Joined(one, NEVER).batches()] == [[1, 2]]
    assert wakes.number == 0


async def test_how_far_the_prompt_is_read_comes_without_events_and_keeps_none_waiting() -> None:
    one = generation()
    batches = Joined(one, NEVER).batches()
    for done in (0, 2):
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.01)
        one.prefilled(done, 2)
        assert await asyncio.wait_for(waiting, 60) == []
        assert one.progress == (done, 2)
    assert await asyncio.wait_for(after(batches, one, event(1, FinishReason.LENGTH)), 60) == [1]


async def test_a_failure_comes_after_what_was_there() -> None:
    one = generation()
    batches = Joined(one, NEVER).batches()
    assert await after(batches, one, event(1), DecodeError("No.")) == [1]
    with pytest.raises(DecodeError, match="No"):
        await anext(batches)
