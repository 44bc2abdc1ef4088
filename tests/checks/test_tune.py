"""Tuning: its decisions on simulated speeds, and a whole search with the bundled pair."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from localspec import paths
from localspec.chat.turn import Message
from localspec.checks import ASPECTS
from localspec.checks.compare import Answering, Apart, AskedTurn, Loading, Task, TimedAnswer
from localspec.checks.gain import TunePlan, TuneReport, challengers, questions, tune
from localspec.checks.prompts import BenchPrompt, load_prompts
from localspec.errors import LocalspecError, UsageError
from localspec.machine import default_threads
from localspec.options import Options

NGRAM, LENGTH = ("ngram",), ("length",)
TARGET = paths.bundled("tiny-target-q8_0.gguf")


def asked(count: int, seed: int) -> list[Task]:
    prompt = BenchPrompt("x", (Message("user", "x"),))
    return [Task(prompt, Options(seed=seed + index, max_tokens=8)) for index in range(count)]


SEARCH, CHECK = asked(4, 0), asked(4, 100)


class Machine:
    """Simulated engines: how fast settings are, and what loading them brings."""

    def __init__(self, speed: Callable[[Mapping[str, Any], AskedTurn], float], noise: float = 0.004) -> None:
        self.speed, self.noise = speed, noise
        self.inexact: Callable[[Mapping[str, Any]], bool] = lambda settings: False
        self.broken: Callable[[Mapping[str, Any]], bool] = lambda settings: False
        self.random = random.Random(1)
        self.open, self.most_open, self.loads = 0, 0, 0

    def __call__(self, settings: Mapping[str, Any], progress: Loading) -> Any:
        if self.broken(settings):
            raise LocalspecError("It does not load.")
        self.open += 1
        self.loads += 1
        self.most_open = max(self.most_open, self.open)
        return _Simulated(self, settings)


class _Simulated:
    def __init__(self, machine: Machine, settings: Mapping[str, Any]) -> None:
        self.machine, self.settings, self.closed = machine, settings, False

    def call(self, method: str, *arguments: Any) -> Any:
        assert not self.closed
        machine = self.machine
        if method == "about":
            kernels = self.settings.get("kernels", "wide")
            exact = not machine.inexact(self.settings)
            return {
                "configuration": f"{kernels} kernels",
                "exact": exact,
                "threads": 2,
                "wide": kernels == "wide",
                "drafts": True,
            }
        noise = 1.0 + machine.noise * machine.random.gauss(0.0, 1.0)
        return TimedAnswer("", 8, 8 * noise / machine.speed(self.settings, *arguments))

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.machine.open -= 1


def tuned(machine: Machine, aspects: tuple[str, ...], base: dict[str, Any] | None = None, **plan: Any) -> TuneReport:
    report = tune(TARGET, None, base or {}, SEARCH, CHECK, TunePlan(aspects, **plan), open_side=machine)
    assert machine.open == 0
    return report


def test_what_is_faster_is_found_and_checked() -> None:
    machine = Machine(lambda settings, question: 1.2 if settings.get("min_ngram") == 3 else 1.0)
    report = tuned(machine, NGRAM)
    assert report.settings == {"min_ngram": 3, "max_ngram": 6}
    assert [trial.taken for trial in report.trials] == [False, True, False]
    assert report.gain is not None
    assert report.gain.value == pytest.approx(1.2, abs=0.02)
    assert report.sure
    assert report.finished


def test_aspects_add_up() -> None:
    def speed(settings: Mapping[str, Any], question: AskedTurn) -> float:
        return (1.1 if settings.get("max_ngram") == 4 else 1.0) * (1.1 if settings.get("draft_cap") == 15 else 1.0)

    report = tuned(Machine(speed), (*LENGTH, *NGRAM))
    assert report.settings == {"min_ngram": 1, "max_ngram": 4, "draft_cap": 15}
    assert report.gain is not None
    assert report.gain.value == pytest.approx(1.21, abs=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
def test_noise_is_no_gain(noise: float) -> None:
    report = tuned(Machine(lambda settings, question: 1.0, noise), (*NGRAM, *LENGTH))
    assert report.settings == {}
    assert not report.sure
    assert {trial.why for trial in report.trials} <= {"no gain beyond noise", "slower"}


def test_a_gain_on_the_searched_prompts_alone_is_not_kept() -> None:
    lucky = {question.options.seed for question in SEARCH}

    def speed(settings: Mapping[str, Any], question: AskedTurn) -> float:
        return 1.2 if settings.get("draft_cap") == 3 and question.options.seed in lucky else 1.0

    report = tuned(Machine(speed), LENGTH)
    assert report.settings == {"draft_cap": 3}
    assert not report.sure


def test_exactness_is_not_given_up_for_speed() -> None:
    machine = Machine(lambda settings, question: 2.0 if settings.get("kernels") == "repacked" else 1.0)
    machine.inexact = lambda settings: settings.get("kernels") == "repacked"
    report = tuned(machine, ("kernels",))
    assert report.settings == {}
    assert "not exact" in next(trial.why for trial in report.trials if "repacked" in trial.words)


def test_what_does_not_load_is_passed_over() -> None:
    machine = Machine(lambda settings, question: 1.5 if settings.get("draft_cap") else 1.0)
    machine.broken = lambda settings: settings.get("draft_cap") == 3
    report = tuned(machine, LENGTH)
    assert report.trials[0].why == "It does not load."
    assert report.settings == {"draft_cap": 15}


def test_defaults_that_do_not_load_are_an_error() -> None:
    machine = Machine(lambda settings, question: 1.0)
    machine.broken = lambda settings: True
    with pytest.raises(LocalspecError, match="does not load"):
        tuned(machine, LENGTH)


def test_a_hopeless_challenger_is_given_up_early() -> None:
    answers = 0

    def speed(settings: Mapping[str, Any], question: AskedTurn) -> float:
        nonlocal answers
        answers += "draft_cap" in settings
        return 0.5 if settings.get("draft_cap") else 1.0

    report = tuned(Machine(speed), LENGTH, rounds=50)
    assert [trial.why for trial in report.trials] == ["slower", "slower"]
    assert answers < 2 * 4 * 4


def test_two_engines_at_most_and_one_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(settings: Mapping[str, Any], question: AskedTurn) -> float:
        return 1.2 if settings.get("max_ngram") == 6 else 1.0

    machine = Machine(speed)
    tuned(machine, NGRAM)
    assert machine.most_open == 2
    monkeypatch.setattr("localspec.checks.gain.available_bytes", lambda: 1)
    small = Machine(speed)
    assert tuned(small, NGRAM).sure
    assert small.most_open == 1


def test_no_time_left_tries_nothing_more() -> None:
    report = tuned(Machine(lambda settings, question: 1.0), NGRAM, minutes=1e-9)
    assert (report.trials, report.finished) == ([], False)


def test_stopping_keeps_what_was_found_so_far() -> None:
    report = TuneReport()
    machine = Machine(lambda settings, question: 1.2 if settings.get("max_ngram") == 4 else 1.0)

    def progress(what: str, share: float) -> None:
        if len(report.trials) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(TARGET, None, {}, SEARCH, CHECK, TunePlan(NGRAM), progress, report, machine)
    assert [trial.taken for trial in report.trials] == [True, False]
    assert machine.open == 0
    assert not report.sure  # nothing was checked


def test_what_the_user_decided_is_not_tried() -> None:
    running = {"wide": False, "drafts": True}
    given = {"threads": 1, "kernels": "plain", "cache": "f16", "min_ngram": 2, "draft_cap": 5}
    assert [one for aspect in ASPECTS for one in challengers(aspect, given, running)] == []
    assert challengers("length", {"max_draft_tokens": 4}, running) == []
    assert challengers("length", {"slots": 4}, running) == []
    assert challengers("ngram", {}, {"wide": False, "drafts": False}) == []
    assert challengers("cache", {}, {"wide": True, "drafts": True}) == []
    assert "wide" not in [one.changes["kernels"] for one in challengers("kernels", {"wide": False}, running)]
    assert challengers("kernels", {"gpu_layers": "auto"}, running) == challengers("kernels", {}, running) != []
    assert challengers("kernels", {"gpu_layers": "auto"}, running | {"gpu": True}) == []
    assert challengers("kernels", {"gpu_layers": 3}, running) == []
    usual = default_threads()
    assert usual not in [one.changes["threads"] for one in challengers("threads", {}, running)]


def test_questions_are_first_turns_with_seeds_of_their_own() -> None:
    found = questions(load_prompts()[20:24], 0.3, 16)
    assert len({question.options.seed for question in found}) == 4
    assert all(len(question.prompt.questions) == 1 for question in found)
    assert {question.prompt.messages[0].role for question in found} == {"system", "user"}


def test_a_search_on_the_real_pair(tiny_target: Path, tiny_draft: Path) -> None:
    found = questions(load_prompts()[:4], 0.0, 8)
    said: list[str] = []
    plan = TunePlan(LENGTH, rounds=2)
    base = {"threads": 1, "exact": "off", "wide": False, "context": 256}
    report = tune(tiny_target, tiny_draft, base, found[:2], found[2:], plan, lambda what, share: said.append(what))
    assert report.defaults["threads"] == 1
    assert [trial.changes for trial in report.trials] == [{"draft_cap": 3}, {"draft_cap": 15}]
    assert all(trial.gain is not None and 0.05 < trial.gain.value < 20 for trial in report.trials)
    assert all(trial.taken or trial.why for trial in report.trials)
    assert report.finished
    assert any("draft_cap 15" in what for what in said)


def test_an_engine_apart_raises_here_what_happened_there(tiny_target: Path) -> None:
    with pytest.raises(UsageError, match="draft_cap is 99"):
        Apart(Answering, tiny_target, None, {"draft_cap": 99})


def test_a_process_that_is_gone_is_one_sentence(tiny_target: Path) -> None:
    settings = {"threads": 1, "exact": "off", "wide": False, "context": 64}
    with closing(Apart(Answering, tiny_target, None, settings)) as apart:
        about = apart.call("about")
        assert about["threads"] == 1
        apart._process.kill()
        with pytest.raises(LocalspecError, match="killed by signal 9"):
            apart.call("about")
