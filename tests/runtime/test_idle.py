"""Passes timed while nobody asks for anything: which, when, and that nothing else is changed by them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from localspec.errors import DecodeError
from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.planning.costs import PassCosts
from localspec.runtime import worker
from localspec.runtime.costs import Rates
from localspec.runtime.engine import Engine
from localspec.runtime.worker import IdleCalibration, IdleLimits, unknown_widths
from localspec.types import NO_TOKENS, Feed, LogitRows, SamplingParams, Tokens


class Machine:
    """A cache, a clock and a system under a test's hand: a pass takes as many seconds as it has rows."""

    n_vocab = 100

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_ctx = 64
        self.now, self.waited, self.extra, self.delay = 1000.0, 0.0, 0.0, 0.0
        self.shared = self.battery = self.broken = False
        self.begun, self.running, self.beside, self.last_pass = 0, 0, 0, 0.0
        self.tokens: Tokens = np.arange(20, dtype=np.int32)
        self.lost = 0
        """How many of them would have to be read anew."""
        self.widths: list[int] = []
        monkeypatch.setattr(worker, "cpus", self)
        monkeypatch.setattr(worker, "perf_counter", lambda: self.now)
        monkeypatch.setattr(worker, "waited", lambda: self.waited)
        monkeypatch.setattr(worker, "on_battery", lambda: self.battery)

    def held(self, slot: int) -> tuple[Tokens, int]:
        return self.tokens, 12

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        assert prompt_length == 12
        return len(tokens) - 1 - self.lost

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        (feed,) = feeds
        assert feed.tokens[:-1].tolist() == self.tokens.tolist()
        self.tokens = np.concatenate((feed.tokens, feed.draft_tokens))
        self.widths.append(1 + len(feed.draft_tokens))
        self.begun += 1 + self.beside
        self.now += self.widths[-1] + self.extra
        self.waited += self.delay
        self.last_pass = self.now
        if self.broken:
            raise DecodeError("no memory")
        return []

    def forget(self, slot: int, keep: int = 0) -> None:
        self.tokens = self.tokens[:keep]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def calibration(machine: Machine, costs: PassCosts, *widths: int) -> IdleCalibration:
    costs.widen(8)
    return IdleCalibration(cast(Context, machine), widths, costs)


def test_every_width_is_timed_from_the_widest_down(machine: Machine) -> None:
    costs = PassCosts({20: {1: 1.0, 4: 4.0}})
    assert unknown_widths(costs, 8, None) == [2, 3, 5, 6, 7, 8]
    assert unknown_widths(costs, 8, frozenset({1, 2, 3, 4, 5})) == [2, 3, 5]
    assert unknown_widths(PassCosts({20: {1: 1.0, 4: 4.0}}, estimated=True), 8, None) == list(range(2, 9))
    waiting = calibration(machine, costs, 6, 8)
    steps = []
    for extra in (50.0, 2.0, 0.0, 50.0, 0.0, 3.0):  # the first pass of a width builds its graph
        machine.extra = extra
        assert waiting.wait == 0.0
        steps.append(waiting.step())
    assert machine.widths == [8, 8, 8, 6, 6, 6]
    assert steps == [False] * 5 + [True]
    assert waiting.wait is None
    assert not waiting.step()
    assert [costs.seconds(width, 20) for width in (1, 4, 6, 8)] == pytest.approx([1.0, 4.0, 6.0, 8.0])
    assert machine.tokens.tolist() == list(range(20)), "what was cached is cached"
    assert unknown_widths(costs, 8, None) == [2, 3, 5, 7]


def test_it_waits_until_nothing_else_runs(machine: Machine) -> None:
    waiting = calibration(machine, PassCosts({20: {1: 1.0}}), 5)
    machine.begun, machine.last_pass = 1, machine.now - 0.5  # of somebody else
    assert waiting.wait == 1.5
    assert not waiting.step()
    assert machine.widths == []
    machine.now += 1.5
    for _ in range(2):
        waiting.step()
        assert waiting.wait == 0.0, "its own passes are no reason to wait"
    machine.begun, machine.running = machine.begun + 1, 1
    machine.now += 10.0
    assert waiting.wait == 2.0, "a long pass of somebody else has not ended"
    machine.running, machine.last_pass = 0, machine.now
    assert waiting.wait == 2.0
    machine.now += 1.5
    assert waiting.wait == 0.5
    assert not waiting.step()
    assert len(machine.widths) == 2


@pytest.mark.parametrize("reason", ["shared", "battery", "delay", "beside", "tokens", "lost"])
def test_where_it_cannot_be_done_well_it_is_left_for_later(machine: Machine, reason: str) -> None:
    costs = PassCosts({20: {1: 1.0}})
    waiting = calibration(machine, costs, 5)
    usual = getattr(machine, reason)
    changes: dict[str, Any] = {"delay": 0.6, "beside": 1, "tokens": np.arange(60, dtype=np.int32), "lost": 4}
    setattr(machine, reason, changes.get(reason, True))
    for _ in range(3):
        assert not waiting.step()
        assert waiting.wait == 60.0
        machine.now += 60.0
    assert machine.widths == ([5] * 3 if reason in ("delay", "beside") else [])
    assert unknown_widths(costs, 5, None) == [2, 3, 4, 5]
    setattr(machine, reason, usual)
    assert [waiting.step() for _ in range(3)] == [False, False, True]
    assert unknown_widths(costs, 5, None) == [2, 3, 4]


def test_a_pass_that_fails_ends_it(machine: Machine) -> None:
    waiting = calibration(machine, PassCosts({20: {1: 1.0}}), 5, 6)
    machine.broken = True
    assert waiting.step()
    assert waiting.wait is None
    assert machine.tokens.tolist() == list(range(20))


# -- in an engine ----------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"context": 256, "threads": 1, "tuned": False, "draft_cap": 14}
STRICT = OPTIONS | {"exact": "strict", "kernels": "repacked", "cache": "bf16"}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which nothing ever disturbs, and nothing is known of the pair."""
    monkeypatch.setattr(worker, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(worker, "cpus", SimpleNamespace(begun=0, running=0, last_pass=0.0, shared=False))
    monkeypatch.setattr(worker, "waited", lambda: None)
    monkeypatch.setattr(worker, "on_battery", lambda: False)
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))


def conversation(engine: Engine) -> list[list[int]]:
    """Answers that each go on with what is cached, and another one that does not."""
    answers: list[list[int]] = []
    history = NO_TOKENS
    for prompt in ("The river", "", "", "A red house"):
        start = engine.tokenize(prompt) if prompt else history
        answer = engine.generate(
            start, sampling=SamplingParams(temperature=0.8), seed=3, max_tokens=12, ignore_end=True
        )
        answer.text()
        answers.append(answer.tokens)
        history = np.concatenate((start, np.array(answer.tokens, dtype=np.int32)))
        held = engine.on_engine_thread(lambda: engine.loaded.context.held(0)[0].tolist())
        assert held == history[: len(held)].tolist()
        assert len(held) >= len(history) - 1
        learned(engine)
    return answers


def learned(engine: Engine) -> None:
    """Waits until every width that may run is known."""
    end = time.monotonic() + 60.0
    while engine._idle and unknown(engine):
        assert time.monotonic() < end
        time.sleep(0.01)


def unknown(engine: Engine) -> list[int]:
    costs, exact = engine.loaded.knowledge.costs, engine.loaded.context.exact_widths
    return engine.on_engine_thread(lambda: unknown_widths(costs, 15, exact))


@pytest.mark.usefixtures("quiet")
def test_an_engine_learns_while_it_waits_and_says_the_same() -> None:
    with Engine.load(**STRICT, drafter="none") as engine:
        plain = conversation(engine)
    with Engine.load(**STRICT) as engine:
        exact = engine.loaded.context.exact_widths or frozenset()
        assert set(unknown(engine)) == exact & set(range(2, 16)), "load times nothing"
        engine.work_when_idle()
        assert conversation(engine) == plain
        assert unknown(engine) == []
    with Engine.load(**STRICT) as engine:
        assert unknown(engine) == [], "it is remembered"
        engine.work_when_idle()
        assert all(job.wait is None for job in engine._idle)


@pytest.mark.usefixtures("quiet")
def test_other_engines_have_nothing_to_learn() -> None:
    for more in ({"drafter": "none"}, {"slots": 2}, {"branches": 2}):
        with Engine.load(**OPTIONS | more, exact="off", wide=False, chat_cache_gb=0) as engine:
            engine.work_when_idle()
            assert engine._idle == []


@pytest.mark.usefixtures("quiet")
def test_a_fault_ends_it_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[IdleCalibration] = []

    def fail(self: IdleCalibration) -> bool:
        steps.append(self)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(IdleCalibration, "step", fail)
    with Engine.load(**OPTIONS, exact="off", wide=False) as engine:
        engine.work_when_idle()
        for _ in range(3):
            engine.on_engine_thread(lambda: None)
        answer = engine.generate("The river", max_tokens=4, ignore_end=True)
        answer.text()
        assert len(answer.tokens) == 4
        assert len(steps) == 1


needs_wide = pytest.mark.skipif(not wide.available(), reason=wide.status().reason)


@needs_wide
@pytest.mark.usefixtures("quiet")
def test_the_machine_is_measured_once_a_day_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (None, 2**30 - 1):
        with monkeypatch.context() as scarce:
            scarce.setattr(worker, "available_bytes", lambda room=room: room)
            waiting = IdleLimits(2)
            assert waiting.wait == 0.0
            assert not waiting.step()
            assert 59.0 < (waiting.wait or 0.0) <= 60.0, "it is tried again later"
    assert wide.read_limits(2) is None
    measured = IdleLimits(2)
    assert measured.step()
    assert measured.wait is None
    assert IdleLimits(2).wait is None, "it is remembered"
    found = wide.read_limits(2)
    assert found is not None
    assert 1e8 < found.memory_rate < 1e13
    assert Rates.of(found).memory == found.memory_rate
    assert wide.read_limits(1) is None, "of other threads nothing is known"

    busy = wide.Limits(1e3, 2.0 * found.int8_rate, time.time() - 90_000)
    wide.write_limits(2, busy)
    again = IdleLimits(2)
    assert again.step()
    later = wide.read_limits(2)
    assert later is not None
    assert later.memory_rate > 1e8, "what was measured beside other work does not stay"
    assert later.int8_rate == busy.int8_rate, "the highest counts"
    assert IdleLimits(2).wait is None


@needs_wide
@pytest.mark.usefixtures("quiet")
def test_an_engine_checks_its_kernels_while_it_waits() -> None:
    with Engine.load(**OPTIONS) as engine:
        check, end = engine.loaded.self_check, time.monotonic() + 60.0
        assert check is not None
        assert not check.over
        engine.work_when_idle()
        while not check.over and time.monotonic() < end:
            time.sleep(0.01)
        assert (check.passed, engine.outdated) == (True, "")
