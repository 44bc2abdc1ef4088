"""The chat's models live in a process of their own: it may die, and the chat goes on."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.remote.answerer import AnswerPart, Question, Sink, Told
from localspec.runner.answering import ChildAnswer, ChildAnswerer
from localspec.runner.child import Child
from localspec.tui.screens.help import DoctorScreen
from localspec.tui.widgets.dialogs import shown
from tests.runner.conftest import children
from tests.runner.test_answering import SENTENCES
from tests.tui.conftest import MakeApp, answered, front, of_child, say, until

LONG = {"temperature": 0.0, "max_tokens": 300, "drafter": "none"}


def pid_of(local: ChildAnswerer) -> int:
    """Of the process that has the models; 0 = there is none now, or the first one loads."""
    return local.child.pid if isinstance(local.child, Child) and local.child.facts else 0


def strike(local: ChildAnswerer, number: signal.Signals) -> None:
    """Ends that process, if there is one."""
    if pid := pid_of(local):
        os.kill(pid, number)


def dies(local: ChildAnswerer, number: signal.Signals) -> None:
    """Has the next answer lose its process at its first part."""
    ask, left = local.answer, [pid_of(local)]

    def answer(question: Question, sink: Sink) -> ChildAnswer:
        def post(told: Told) -> bool:
            if left and isinstance(told, AnswerPart):
                os.kill(left.pop(), number)
            return sink.post_message(told)

        return ask(question, SimpleNamespace(post_message=post))

    local.answer = answer  # type: ignore[method-assign]


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda number: number.name)
async def test_an_answer_goes_on_when_the_process_dies(number: signal.Signals, make_app: MakeApp) -> None:
    before = children()  # other tests of this process may have left one
    local = of_child()
    app = make_app(answerer=local, begin=LONG)
    words: list[str] = []
    with shown(words.append):
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: app.session.facts is not None)
            first = pid_of(local)
            await say(pilot, "Tell me a story.")
            dies(local, number)
            await say(pilot, f"Repeat this text exactly: {SENTENCES}")
            answer = front(app).path[3]
            assert answer.state == "done"
            assert len(answer.content) > 20
            assert pid_of(local) not in (0, first)
    assert f"({number.name}) while it answered" in words[0]
    assert "The models are loaded again." in words[0]
    local.close()
    assert not children() - before


@pytest.mark.asyncio
async def test_a_question_that_no_process_took_keeps_the_error_and_the_next_is_answered(make_app: MakeApp) -> None:
    local = of_child()
    app = make_app(answerer=local, begin=LONG)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await say(pilot, "Say: red house")
        first = pid_of(local)
        strike(local, signal.SIGKILL)
        await until(pilot, lambda: pid_of(local) not in (0, first))
        strike(local, signal.SIGSTOP)  # it loads, and takes nothing
        front(app).composer.put("Say: blue boat")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).answer is not None)
        strike(local, signal.SIGKILL)
        await until(pilot, lambda: len(front(app).path) == 4)
        await answered(pilot)
        failed = front(app).path[-1]
        assert failed.state == "error"
        assert "was killed (SIGKILL) while it was loaded" in failed.note
        await say(pilot, "Say: blue boat")
        assert [message.state for message in front(app).path[-2:]] == ["done", "done"]
    local.close()


@pytest.mark.trial
# The HTTP library leaves a socket that could not be connected to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.asyncio
async def test_many_deaths_at_random_moments(make_app: MakeApp) -> None:
    before = children()
    local = of_child()
    app, rng, rounds, memory = make_app(answerer=local, begin=LONG), random.Random(7), 50, list[int]()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        for index in range(rounds):
            await until(pilot, lambda: pid_of(local) or local.child is None or local.child.outdated)
            number = rng.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT))
            death = threading.Timer(rng.random() * 0.5, strike, (local, number))
            death.start()
            await say(pilot, f"Tell me story {index}.")
            death.join()
            path = front(app).path
            assert len(path) == 2 * index + 2, "no message is lost"
            assert path[-2].content == f"Tell me story {index}."
            assert path[-1].state in ("done", "error")
            assert not local.child or len(children() - before) <= 1
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        assert sum(message.state == "done" for message in front(app).path[1::2]) > rounds // 2
    local.close()
    assert not children() - before
    assert memory[-1] < memory[rounds // 2] + 20_000, "KiB of this process stay as they are"


@pytest.mark.asyncio
async def test_the_doctor_sees_models_of_another_process(make_app: MakeApp, folders: Path) -> None:
    local = of_child()
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
        strike(local, signal.SIGKILL)
        await until(pilot, lambda: local.child is not None and local.child.last_log)
        screen._show([])
        screen.action_again()
        await until(pilot, lambda: screen.findings)
        found = {finding.name: finding.value for finding in screen.findings}
        assert "sched_reserve" in found["last process"], "the last that llama.cpp says of loading"
    local.close()
