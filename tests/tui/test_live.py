"""The real bundled pair behind the screens."""

from __future__ import annotations

import threading

import pytest

from localspec.runtime.engine import Engine
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.answerer import AnswerPart
from localspec.tui.talk.conversation import question_of
from localspec.tui.talk.local import LocalAnswerer
from tests.tui.conftest import MakeApp, answered, front, until


def _shown(app: ChatApp) -> str:
    """The Markdown of the last message, if it is an answer."""
    text = front(app).transcript.bubbles[-1].text
    return "" if text is None else "".join(part.text for part in text.segments)


def _escape_once(app: ChatApp, said: object) -> None:
    if isinstance(said, AnswerPart):
        app.answered.unsubscribe(front(app))
        app.call_later(app.simulate_key, "escape")  # from the app: what a widget sends does not bubble beyond it


@pytest.mark.asyncio
async def test_first_run(make_app: MakeApp, pair: Engine) -> None:
    load = threading.Event()

    def loading(progress: object) -> Engine:
        load.wait()
        return pair

    app = make_app(answerer=LocalAnswerer(loading, "bundled pair"), begin={"temperature": 0.0, "max_tokens": 40})
    async with app.run_test(size=(100, 30)) as pilot:
        front(app).composer.put("Say: red house")
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) == 2)
        assert app.facts is None
        load.set()
        await answered(pilot)
        first = front(app).path[1]
        assert first.state == "done"
        assert first.content.strip()
        assert first.stats["passes"] > 0
        assert "".join(token.text for token in app.archive.replay(first.id).tokens()).strip() == first.content.strip()
        assert app.facts is not None
        assert app.context_use is not None
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(front(app).path[1].siblings) == 2)
        await answered(pilot)
        assert front(app).path[1].content == first.content  # temperature 0


@pytest.mark.asyncio
async def test_stop_and_go_on(make_app: MakeApp, live: LocalAnswerer) -> None:
    app = make_app(answerer=live, begin={"temperature": 0.0})
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.facts is not None)
        assert live.engine is not None
        endless = {"logit_bias": [[token, float("-inf")] for token in live.engine.loaded.model.end_tokens]}
        app.archive.set_params(front(app).chat_id, endless)
        app.answered.subscribe(front(app), lambda said: _escape_once(app, said))  # a pilot is too slow for the pair
        front(app).composer.put("Count for ever")
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) == 2)
        await answered(pilot)
        stopped = front(app).path[1]
        assert (stopped.state, stopped.note) == ("stopped", "")
        assert _shown(app) == stopped.content
        app.archive.set_params(front(app).chat_id, endless | {"max_tokens": 8})
        front(app).transcript.bubbles[1].focus()
        await pilot.press("o")
        await until(pilot, lambda: len(front(app).path[1].content) > len(stopped.content))
        await answered(pilot)
        assert front(app).path[1].content.startswith(stopped.content)


@pytest.mark.asyncio
async def test_a_model_that_cannot_be_loaded_is_said(make_app: MakeApp, tmp_path: object) -> None:
    broken = LocalAnswerer(lambda progress: Engine.load("/nosuch/model.gguf", progress=progress), "nosuch")
    app = make_app(answerer=broken)
    async with app.run_test() as pilot:
        await until(pilot, lambda: any("nosuch" in note.message for note in app._notifications))
        front(app).composer.put("Hello?")
        await pilot.press("enter")
        await answered(pilot)
        assert front(app).path[1].state == "error"


@pytest.mark.asyncio
async def test_the_pair_answers_once_its_thinking_is_ended(make_app: MakeApp, live: LocalAnswerer) -> None:
    app = make_app(answerer=live, begin={"temperature": 0.0, "max_tokens": 12})
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.facts is not None)
        pane = front(app)
        asked = app.archive.append_user(pane.chat_id, "Say: red house")
        writer = app.archive.begin_answer(asked.id, model="bundled pair")
        writer.extend(reasoning="I say it.")
        writer.finish("stopped")
        on, ended = (question_of(pane.chat, pane.path, app.facts, True, thought_out) for thought_out in (False, True))
        tokens = [live.count(question) or 0 for question in (on, ended)]
        assert tokens[1] > tokens[0]  # the mark of the end
        pane.ask(go_on=True, thought_out=True)
        await until(pilot, lambda: pane.path[-1].content)
        await answered(pilot)
        assert (pane.path[-1].reasoning, pane.path[-1].state) == ("I say it.", "done")
