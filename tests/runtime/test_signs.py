"""A process counts as hung if its models have done nothing for too long: a pass of whatever they do is something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation

CANCELLABLE = ("embed", "score", "hidden_states")
"""Methods that ask, between passes, whether the caller wants no more."""
PASS_SECONDS, IDLE_SECONDS = 40.0, 3600.0
"""On the clock of these tests."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock."""
    clock = [0.0]
    monkeypatch.setattr("localspec.runtime.generation.monotonic", lambda: clock[0])
    monkeypatch.setattr("localspec.runtime.generation._faults", lambda: 0)
    return clock


@pytest.mark.parametrize("method", CANCELLABLE)
def test_each_pass_over_a_text_is_a_sign_of_life(method: str, now: list[float]) -> None:
    silences: list[float] = []
    with Engine.load() as engine:
        run = engine._readings._run

        def slowly(job: Callable[[], Any]) -> Any:
            def counted() -> Any:
                now[0] += PASS_SECONDS
                silences.append(engine.silence[0])
                return job()

            now[0] += IDLE_SECONDS
            assert engine.silence[0] == 0
            return run(counted)

        engine._readings._run = slowly
        more: dict[str, tuple[Any, ...]] = {"score": (0,), "hidden_states": ((),)}
        getattr(engine, method)(engine.tokenize("one two three " * 500), *more.get(method, ()))
        assert engine.silence == (0, PASS_SECONDS)
    assert len(silences) > 2
    assert set(silences) == {PASS_SECONDS}


def test_each_pass_of_an_answer_is_a_sign_of_life(now: list[float]) -> None:
    silences: list[float] = []
    with Engine.load() as engine:
        step = engine.loop.step

        def slowly() -> Any:
            now[0] += PASS_SECONDS
            silences.append(engine.silence[0])
            return step()

        engine.loop.step = slowly  # type: ignore[method-assign]
        now[0] += IDLE_SECONDS
        answer: Generation = engine.generate("Sort: 4, 2", max_tokens=5, ignore_end=True)
        answer.text()
        engine.on_engine_thread(lambda: None)
        assert engine.silence == (0, PASS_SECONDS)
    assert len(silences) > 1
    assert set(silences) == {PASS_SECONDS}
