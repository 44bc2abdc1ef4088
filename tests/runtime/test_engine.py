"""The engine's thread on fakes: settings that change between requests, jobs, and a generation by itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from localspec.engine.slot import Event, FinishReason
from localspec.errors import DecodeError, UsageError
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.types import Feed, LogitRows
from tests.fakes import Answer, FakeDraftContext
from tests.runtime.fake_engine import (
    alone,
    make,
    read,
    request,
)

# -- configuring and jobs --------------------------------------------------------------------------------------------


def test_the_drafter_can_be_changed_between_requests_only(engines: list[Engine]) -> None:
    engine, _ = make(drafter="none", n_ctx=4096)
    engines.append(engine)
    running = engine.submit(request(1, 4000))
    with pytest.raises(UsageError, match="while a request is running"):
        engine.configure(drafter="draft")
    running.cancel()
    assert read(running).stats.drafted == 0
    assert engine.settings.drafter == "none"
    engine.configure(drafter="draft", max_draft_tokens=3)
    assert engine.settings.drafter == "draft"
    found = read(engine.submit(request(1, 30)))
    assert found.stats.drafted > 0
    assert found.tokens == alone(request(1, 30))


def test_the_draft_model_has_computed_on_the_engines_thread_before_anybody_asks(
    engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, decode = list[str](), FakeDraftContext.decode

    def seen(self: FakeDraftContext, feeds: Sequence[Feed]) -> list[LogitRows]:
        threads.append(threading.current_thread().name)
        return decode(self, feeds)

    monkeypatch.setattr(FakeDraftContext, "decode", seen)
    engine, target = make()
    engines.append(engine)
    assert threads == ["localspec-engine"]
    context: Any = engine.loaded.draft_context
    assert (context.cached[0], target.cached[0]) == ([], [])


def test_one_that_cannot_compute_is_dropped_before_anybody_asks(
    engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FakeDraftContext, feeds: Sequence[Feed]) -> list[LogitRows]:
        raise DecodeError("llama.cpp could not evaluate a pass.")

    monkeypatch.setattr(FakeDraftContext, "decode", fail)
    engine, _ = make(drafter="draft")
    engines.append(engine)
    assert engine.dropped == {"draft": "llama.cpp could not evaluate a pass."}
    assert read(engine.submit(request(1))).tokens == alone(request(1))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"context": 99}, "context is fixed"),
        ({"drafter": "oracle"}, "no drafter called 'oracle'"),
        ({"max_draft_tokens": 99}, "max_draft_tokens is 99"),
        ({"max_draft_tokens": 64}, "loaded for 64 rows"),
        ({"branches": 2}, "loaded for chains"),
        ({"drafter": "lookup", "min_ngram": 0}, "min_ngram is 0"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(
    changes: dict[str, Any], named: str, engines: list[Engine]
) -> None:
    engine, _ = make()
    engines.append(engine)
    before = engine.settings
    with pytest.raises(UsageError, match=named):
        engine.configure(**changes)
    assert engine.settings == before
    assert read(engine.submit(request(1))).tokens == alone(request(1))


def test_jobs_run_on_the_engines_thread_and_hand_back_what_they_make(engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    assert engine.on_engine_thread(lambda: threading.current_thread().name) == "localspec-engine"
    with pytest.raises(ZeroDivisionError):
        engine.on_engine_thread(lambda: 1 // 0)
    assert engine.on_engine_thread(lambda: 5) == 5


# -- a generation by itself ------------------------------------------------------------------------------------------


def event(text: str, *tokens: int, finish: FinishReason | None = None) -> Event:
    return Event(0, text, tokens, (), (), finish, Answer().stats)


def test_a_generation_gives_the_text_not_yet_read() -> None:
    generation = Generation(request(1))
    for one in (event("a", 1), event("b", 2), event("c", 3, finish=FinishReason.STOP)):
        generation.deliver(one)
    assert next(iter(generation)).text == "a"
    assert generation.finish is None
    assert generation.text() == "bc"
    assert generation.tokens == [1, 2, 3]
    assert generation.finish is FinishReason.STOP
    assert generation.text() == ""
