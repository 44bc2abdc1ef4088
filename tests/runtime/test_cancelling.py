"""Cancelling requests that wait, read their prompt, draft or run; closing the engine."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

import pytest

from localspec.engine.interfaces import Request
from localspec.engine.slot import FinishReason
from localspec.errors import LocalspecError
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from tests.fakes import prompt
from tests.runtime.fake_engine import (
    PATIENCE,
    Hold,
    alone,
    make,
    read,
    request,
)

# -- cancelling ------------------------------------------------------------------------------------------------------


def test_cancelling_while_running_takes_one_pass_at_most(engines: list[Engine]) -> None:
    engine, target = make(drafter="none")
    engines.append(engine)
    hold = Hold(target)
    generation = engine.submit(request(1, 100))
    for _ in range(3):
        hold.arrived()
        hold.go()
    hold.arrived()
    generation.cancel()
    hold.go()
    found = read(generation)
    assert found.finish is FinishReason.CANCELLED
    assert found.tokens == alone(request(1, 4))
    target.before_decode = lambda: None
    assert read(engine.submit(request(2))).tokens == alone(request(2))


def test_cancelling_while_waiting_is_heard_before_a_slot_is_free(engines: list[Engine]) -> None:
    engine, target = make(drafter="none")
    engines.append(engine)
    hold = Hold(target)
    running, waiting = engine.submit(request(1, 20)), engine.submit(request(2))
    hold.arrived()
    waiting.cancel()
    hold.go(2)
    hold.arrived()
    hold.arrived()
    found = read(waiting)
    assert (found.finish, found.tokens, found.text) == (FinishReason.CANCELLED, [], "")
    assert running.finish is None
    hold.go(100)
    assert read(running).tokens == alone(request(1, 20))
    assert len(target.prefilled) == 1, "the cancelled prompt was never read"


def test_cancelling_while_the_prompt_is_read(engines: list[Engine]) -> None:
    engine, target = make()
    engines.append(engine)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        generation.cancelled = done >= 16

    ready = threading.Event()
    engine_free = threading.Thread(target=lambda: engine.on_engine_thread(lambda: ready.wait(PATIENCE)), daemon=True)
    engine_free.start()
    generation = engine.submit(Request(prompt(*[1] * 60), max_tokens=3, on_prefill=progress))
    ready.set()
    found = read(generation)
    assert (found.finish, found.tokens) == (FinishReason.CANCELLED, [])
    assert seen == [(0, 59), (8, 59), (16, 59)]
    assert target.passes == []


def test_cancelling_while_a_draft_is_drawn_ends_within_the_pass(engines: list[Engine]) -> None:
    """The cancel comes from inside the draft model's decode: the pass under way is the last."""
    engine, _ = make(drafter="draft", n_ctx=4096)
    engines.append(engine)
    context: Any = engine.loaded.draft_context
    honest, calls, running = context.decode, [0], list[Generation]()

    def decode(feeds: Any) -> Any:
        calls[0] += 1
        if calls[0] == 10:
            running[0].cancel()
        return honest(feeds)

    context.decode = decode
    gate = threading.Event()
    engine.loaded.context.before_decode = gate.wait  # type: ignore[attr-defined]
    running.append(engine.submit(request(1, 4000)))
    gate.set()
    found = read(running[0])
    assert running[0].finish is FinishReason.CANCELLED
    assert found.tokens == alone(request(1, len(found.tokens)))
    assert calls[0] < 10 + 5  # at most the rest of that draft


# -- closing ---------------------------------------------------------------------------------------------------------


def test_closing_cancels_what_runs_and_what_waits() -> None:
    engine, target = make(n_ctx=4096)
    generations = [engine.submit(request(seed, 4000)) for seed in range(3)]
    assert next(iter(generations[0])).tokens
    engine.close()
    assert [read(generation).finish for generation in generations] == [FinishReason.CANCELLED] * 3
    assert len(target.prefilled) == 1, "what waits is not begun"
    assert target.closed == 1
    engine.close()
    assert target.closed == 1
    for use in (lambda: engine.submit(request(1)), lambda: engine.on_engine_thread(lambda: None)):
        with pytest.raises(LocalspecError, match="The engine is closed"):
            use()


def test_closing_while_a_prompt_is_read_cancels_it_too() -> None:
    engine, target = make(drafter="none")
    reading, closed = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        reading.set()
        assert closed.wait(PATIENCE)

    generation = engine.submit(Request(prompt(*[1] * 60), max_tokens=50, ignore_end=True, on_prefill=progress))
    assert reading.wait(PATIENCE)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    deadline = monotonic() + PATIENCE
    while not engine.closing and monotonic() < deadline:
        closed.wait(0.001)
    closed.set()
    found = read(generation)
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert found.finish is FinishReason.CANCELLED
    assert len(target.passes) <= 1


def test_an_idle_engine_closes_as_a_context_manager_does() -> None:
    engine, target = make()
    with engine as same:
        assert same is engine
        assert read(engine.submit(request(1))).tokens == alone(request(1))
    assert target.closed == 1
