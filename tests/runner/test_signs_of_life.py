"""A process counts as hung if its models have done nothing for too long: a pass of whatever they do is something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import Pipe
from typing import Any

import pytest

from localspec.runner import runner
from localspec.runner.messages import Call
from localspec.runner.runner import CANCELLABLE, Runner
from localspec.runtime.engine import Engine

PASS_SECONDS = 40.0
"""On the clock of this test."""


@pytest.mark.parametrize("method", CANCELLABLE)
def test_each_pass_over_a_text_is_a_sign_of_life(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, silences = [0.0], list[float]()
    monkeypatch.setattr(runner, "monotonic", lambda: now[0])
    ours, theirs = Pipe()
    ours.close()  # nobody listens
    served = Runner(theirs)
    with Engine.load() as engine, theirs:
        served._engine = engine
        run = engine._readings._run

        def slowly(job: Callable[[], Any]) -> Any:
            now[0] += PASS_SECONDS
            silences.append(served._pulse()[0].silent)
            return run(job)

        monkeypatch.setattr(engine._readings, "_run", slowly)
        tokens = engine.tokenize("one two three " * 500)
        served._stops[1] = threading.Event()
        served._call(engine, Call(1, method, (tokens, *{"score": (0,), "hidden_states": ((),)}.get(method, ()))))
        served.outbox.close()
    assert len(silences) > 2
    assert max(silences) <= PASS_SECONDS
