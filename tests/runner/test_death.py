"""Whatever ends the process of the models: one clear error, a new process, and nothing is left over."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import RunnerError
from localspec.runner.engine import EngineApart
from localspec.runner.tape import cause
from localspec.runtime.generation import Generation
from tests.llama import architectures
from tests.runner.conftest import children, lives, until

PROMPT = "Sort: 4, 2, 9, 1\n"
WORDS = {"SIGKILL": "was killed (SIGKILL)", "SIGSEGV": "crashed (SIGSEGV)", "SIGABRT": "gave up (SIGABRT)"}
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
SLEEPS = """
import time
from localspec.engine.interfaces import Needs

class Sleeps:
    name, free, needs = "sleeps", True, Needs()

    def __init__(self, setup): pass
    def missing(self, slot, history): return 0
    def draft(self, requests): time.sleep(1000)
    def observe(self, outcomes): pass
    def close(self): pass
"""
"""A drafter that never answers."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")


def text(engine: EngineApart) -> str:
    return engine.generate(PROMPT, seed=1, max_tokens=20, ignore_end=True).text()


def kill(engine: EngineApart, number: int) -> int:
    """Ends the process of the models; returns its id."""
    pid = engine.pid
    os.kill(pid, number)
    return pid


def renewed(engine: EngineApart, old: int) -> None:
    """Waits for the new process, which answers."""
    until(lambda: engine.pid not in (0, old))
    assert not lives(old)
    text(engine)


@pytest.mark.parametrize("number", SIGNALS)
def test_death_while_it_answers_is_one_error_and_a_new_process_answers(
    number: signal.Signals, nothing_is_left: None
) -> None:
    with EngineApart.load() as engine:
        before = text(engine)
        running, waiting = (engine.generate(PROMPT, max_tokens=100_000, ignore_end=True) for _ in range(2))
        first = next(iter(running))
        old = kill(engine, number)
        for generation in (running, waiting):
            with pytest.raises(RunnerError) as told:
                generation.text()
            said = f"The process that computes tiny-target-q8_0.gguf {WORDS[number.name]} while it answered."
            assert told.value.message == said
        assert first.tokens == tuple(running.tokens[: len(first.tokens)])
        renewed(engine, old)
        assert text(engine) == before
        assert any("llama" in line for line in engine.last_words)


def test_after_death_while_it_is_idle_the_new_process_has_the_same_settings(
    nothing_is_left: None,
) -> None:
    with EngineApart.load() as engine:
        engine.configure(max_draft_tokens=2)
        before, old = text(engine), kill(engine, signal.SIGKILL)
        renewed(engine, old)
        assert text(engine) == before
        assert engine.settings.max_draft_tokens == 2
        assert engine.outdated == ""


def test_a_process_that_dies_again_before_an_answer_is_not_replaced(nothing_is_left: None) -> None:
    with EngineApart.load() as engine:
        text(engine)
        old = kill(engine, signal.SIGKILL)
        until(lambda: engine.pid not in (0, old))
        running = engine.generate(PROMPT, max_tokens=100_000, ignore_end=True)
        next(iter(running))
        kill(engine, signal.SIGKILL)
        with pytest.raises(RunnerError, match="was killed"):
            running.text()
        until(lambda: engine.outdated != "")
        with pytest.raises(RunnerError, match="was killed"):
            engine.generate(PROMPT)
        with pytest.raises(RunnerError, match="was killed"):
            engine.forget()


@pytest.mark.parametrize("number", SIGNALS)
def test_death_while_it_loads_is_one_error(number: signal.Signals, nothing_is_left: None) -> None:
    before = children()

    def killing(what: str, share: float) -> None:
        for pid in children() - before:
            with suppress(ProcessLookupError):  # the news of its death is later than another report
                os.kill(pid, number)

    with pytest.raises(RunnerError) as told:
        EngineApart.load(progress=killing)
    said = f"The process that computes tiny-target-q8_0.gguf {WORDS[number.name]} while it was loaded."
    assert told.value.message == said
    assert told.value.exit_code == 3


def test_death_while_it_reads_a_text_is_told_to_the_caller(nothing_is_left: None) -> None:
    with EngineApart.load() as engine:
        tokens, asked = engine.tokenize("one two three " * 300), list[int]()

        def asking() -> bool:
            if not asked:
                asked.append(kill(engine, signal.SIGKILL))
            return False

        os.kill(engine.pid, signal.SIGSTOP)  # so that it is not done before it is asked about
        with pytest.raises(RunnerError, match=r"was killed .* while it read a text"):
            engine.embed(tokens, asking)


def test_a_process_that_stands_still_is_ended(nothing_is_left: None) -> None:
    with EngineApart.load(patience=5.0) as engine:
        text(engine)
        old = kill(engine, signal.SIGSTOP)
        with pytest.raises(RunnerError, match="gave no sign of life for 5 seconds"):
            engine.generate(PROMPT).text()
        renewed(engine, old)


def test_models_that_do_nothing_while_something_is_asked_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_left: None
) -> None:
    (tmp_path / "sleeps.py").write_text(SLEEPS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        EngineApart.load(drafter="sleeps:Sleeps", patience=5.0) as engine,
        pytest.raises(RunnerError, match=r"gave no sign of life for \d+ seconds while it"),
    ):
        engine.generate(PROMPT, max_tokens=20).text()


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "from localspec.runner.engine import EngineApart\n"
        "engine = EngineApart.load()\n"
        "running = engine.generate('Sort: 4, 2', max_tokens=10**6, ignore_end=True)\n"
        "next(iter(running))\n"
        "print(engine.pid, flush=True)\n"
        "running.text()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert lives(pid)
        parent.kill()
    until(lambda: not lives(pid))


def test_a_file_that_llama_cpp_ends_the_process_over_is_one_sentence(tmp_path: Path, nothing_is_left: None) -> None:
    file = architectures.write("qwen3", tmp_path, attention__value_length=64)  # the keys have 128
    with pytest.raises(RunnerError) as told:
        EngineApart.load(file)
    assert told.value.message == "The process that computes qwen3.gguf gave up (SIGABRT) while it was loaded."
    assert told.value.hint.startswith("llama.cpp wrote: GGML_ASSERT(n_embd_head == ")


def test_llama_cpps_reason_is_found_among_its_last_lines() -> None:
    lines = ["load_tensors: done", "/x/ggml/src/ggml.c:4321: GGML_ASSERT(a->ne[0] == b->ne[0]) failed", "Fatal Python"]
    assert cause(lines) == "GGML_ASSERT(a->ne[0] == b->ne[0]) failed"
    assert cause(["load_tensors: done"]) == ""


def _read(running: Generation, each: Callable[[int], object]) -> None:
    for index, _ in enumerate(running):
        each(index)


def _strike(engine: EngineApart, rng: random.Random) -> None:
    """Kills at a random moment: while a prompt is read, while it answers, or while it is idle."""
    moment, number = rng.choice(("reading", "answering", "idle")), rng.choice(SIGNALS)
    old, errors = engine.pid, list[BaseException]()
    if moment == "idle":
        kill(engine, number)
    else:
        prompt: Any = PROMPT if moment == "answering" else engine.tokenize("one two three " * 300)

        def strike(done: int, total: int) -> None:
            if moment == "reading" and done >= total * rng.random() and not errors:
                errors.append(AssertionError())
                kill(engine, number)

        running = engine.generate(prompt, max_tokens=100_000, ignore_end=True, on_prefill=strike)
        passes = rng.randrange(1, 30)
        with pytest.raises(RunnerError):
            _read(running, lambda index: kill(engine, number) if (index, moment) == (passes, "answering") else 0)
    renewed(engine, old)


def _strikes(count: int, seed: int) -> None:
    with EngineApart.load() as engine:
        before, rng = text(engine), random.Random(seed)
        for _ in range(count):
            _strike(engine, rng)
            assert text(engine) == before


def test_a_few_deaths_at_random_moments(nothing_is_left: None) -> None:
    _strikes(3, seed=64)


@pytest.mark.trial
def test_many_deaths_at_random_moments(nothing_is_left: None) -> None:
    _strikes(100, seed=65)
