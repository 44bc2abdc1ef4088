"""The chat's models live in a process of their own: it may die, and the chat goes on."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.engine.request import Event
from localspec.runner.engine import EngineApart
from localspec.runtime.generation import Generation
from localspec.tui.screens.doctor import DoctorScreen
from localspec.tui.talk.local import LocalAnswerer
from localspec.tui.widgets.corner import shown
from tests.runner.conftest import children
from tests.tui.conftest import MakeApp, front, say, until

LONG = {"temperature": 0.0, "max_tokens": 60, "drafter": "none"}


def pid_of(local: LocalAnswerer) -> int:
    """Of the process that has the models; 0 = there is none now."""
    return local.engine.pid if isinstance(local.engine, EngineApart) else 0


def strike(local: LocalAnswerer, number: signal.Signals) -> None:
    """Ends that process, if there is one."""
    if pid := pid_of(local):
        os.kill(pid, number)


def dies(engine: EngineApart, number: signal.Signals) -> Callable[[Generation], None]:
    """Begins answers, of which the first one loses its process at its first tokens."""
    begin, left = engine.begin, [engine.pid]

    def beginning(generation: Generation) -> None:
        deliver = generation.deliver

        def delivered(item: Event | BaseException) -> None:
            deliver(item)
            if left:
                os.kill(left.pop(), number)

        generation.deliver = delivered  # type: ignore[method-assign]
        begin(generation)

    return beginning


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda number: number.name)
async def test_an_answer_goes_on_when_the_process_dies(number: signal.Signals, make_app: MakeApp) -> None:
    before = children()  # other tests of this process may have left one
    local = LocalAnswerer(lambda progress: EngineApart.load(progress=progress), "bundled pair")
    app = make_app(answerer=local, begin=LONG)
    words: list[str] = []
    with shown(words.append):
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: app.session.facts is not None)
            assert isinstance(local.engine, EngineApart)
            first = local.engine.pid
            await say(pilot, "Tell me a story.")
            local.engine.begin = dies(local.engine, number)  # type: ignore[method-assign,assignment]
            await say(pilot, "Tell me a story.")
            answer = front(app).path[3]
            assert answer.state == "done"
            assert len(answer.content) > 20
            assert local.engine.pid not in (0, first)
    assert f"({number.name}) while it answered" in words[0]
    assert "The models are loaded again." in words[0]
    local.close()
    assert not children() - before


@pytest.mark.trial
@pytest.mark.asyncio
async def test_many_deaths_at_random_moments(make_app: MakeApp) -> None:
    before = children()
    local = LocalAnswerer(lambda progress: EngineApart.load(progress=progress), "bundled pair")
    app, rng, rounds, memory = make_app(answerer=local, begin=LONG), random.Random(7), 50, list[int]()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        for index in range(rounds):
            await until(pilot, lambda: pid_of(local) or local.engine is None or local.engine.outdated)
            number = rng.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT))
            death = threading.Timer(rng.random() * 0.5, strike, (local, number))
            death.start()
            await say(pilot, f"Tell me story {index}.")
            death.join()
            path = front(app).path
            assert len(path) == 2 * index + 2, "no message is lost"
            assert path[-2].content == f"Tell me story {index}."
            assert path[-1].state in ("done", "error")
            assert not local.engine or len(children() - before) <= 1
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        assert sum(message.state == "done" for message in front(app).path[1::2]) > rounds // 2
    local.close()
    assert not children() - before
    assert memory[-1] < memory[rounds // 2] + 20_000, "KiB of this process stay as they are"


@pytest.mark.asyncio
async def test_the_doctor_sees_models_of_another_process(make_app: MakeApp, folders: Path) -> None:
    local = LocalAnswerer(lambda progress: EngineApart.load(progress=progress), "bundled pair")
    app = make_app(answerer=local)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        screen = DoctorScreen(app.chat_screen)
        app.push_screen(screen)
        await until(pilot, lambda: screen.findings)
        found = {finding.name: finding.value for finding in screen.findings}
        assert "tiny" in found["target"]
        assert "tokens a conversation" in found["context"]
        assert "last process" not in found
        assert isinstance(local.engine, EngineApart)
        os.kill(local.engine.pid, signal.SIGKILL)
        await until(pilot, lambda: local.engine is not None and local.engine.last_words)
        screen.findings = []
        screen.action_again()
        await until(pilot, lambda: screen.findings)
        found = {finding.name: finding.value for finding in screen.findings}
        assert "sched_reserve" in found["last process"], "the last that llama.cpp says of loading"
    local.close()
