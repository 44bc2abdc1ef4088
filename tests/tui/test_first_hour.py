"""The path of somebody who opens the chat for the first time, on the pair that comes with localspec."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from localspec.runner.answering import ChildAnswerer
from localspec.runtime.engine import Engine
from localspec.tui.screens.history import HistoryScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.transcript import MARKDOWN, Welcome
from tests.tui.conftest import MakeApp, answered, asking, front, until

pytestmark = pytest.mark.asyncio


def said(app: ChatApp) -> list[str]:
    """The user's own messages on the path."""
    return [message.content for message in front(app).path if message.role == "user"]


async def write(pilot: Pilot[Any], text: str) -> None:
    """Key by key, and Enter."""
    await pilot.press(*text)
    await pilot.press("enter")


async def test_question_edit_queue_search_origins_quit_resume(
    make_app: MakeApp, live: ChildAnswerer, pair: Engine
) -> None:
    app = make_app(answerer=live)
    async with app.run_test(size=(100, 40)) as pilot:
        assert front(app).query_one(Welcome).display
        await write(pilot, "Say: red house")  # it may still be loading
        await until(pilot, lambda: said(app) == ["Say: red house"])
        await answered(pilot)
        first = front(app).path[1]
        assert (first.state, bool(first.content)) == ("done", True)
        assert not front(app).query_one(Welcome).display

        await pilot.press("ctrl+g")
        assert front(app).composer.text == "Say: red house"
        await write(pilot, " or blue boat")
        await until(pilot, lambda: said(app) == ["Say: red house or blue boat"])
        await answered(pilot)
        assert front(app).path[0].sibling_number == 2

        app.session.archive.update_chat(
            front(app).chat_id, params={"max_tokens": 1000, "temperature": 0.0, "logit_bias": endless(pair)}
        )
        await write(pilot, "Count on")
        await until(pilot, lambda: front(app).answer is not None and len(front(app).path) == 4)
        front(app).composer.put("Sort: 4, 2, 9")  # at once: the pair writes faster than keys come
        await pilot.press("enter")
        await until(pilot, lambda: [prompt.text for prompt in front(app).queue.prompts] == ["Sort: 4, 2, 9"])
        app.session.archive.update_chat(front(app).chat_id, params={"max_tokens": 20})
        await until(pilot, lambda: len(said(app)) == 3)
        await answered(pilot)
        assert said(app) == ["Say: red house or blue boat", "Count on", "Sort: 4, 2, 9"]
        assert front(app).path[3].stats["generated_tokens"] == 1000, "the queue waited for its end"

        await pilot.press("f6")
        await until(pilot, lambda: not any(bubble.texts for bubble in front(app).transcript.bubbles[1::2]))
        assert front(app).transcript.bubbles[1]._view != MARKDOWN
        assert app.session.archive.replay(front(app).path[1].id).passes

        await pilot.press("ctrl+f")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await write(pilot, "boat")
        await until(pilot, lambda: app.screen is app.chat_screen)
        await until(pilot, lambda: front(app).path[0].content.endswith("blue boat"))

        front(app).composer.focus()
        await pilot.press(*"draft")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app._exit)

    live.close()
    again = make_app(answerer=asking(pair))
    async with again.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: again.session.facts is not None)
        assert said(again) == ["Say: red house or blue boat", "Count on", "Sort: 4, 2, 9"]
        assert front(again).composer.text == "draft"
        await pilot.press(*" more", "enter")
        await until(pilot, lambda: said(again)[-1] == "draft more")
        await answered(pilot)
        assert front(again).path[-1].state == "done"
    again.session.answerer.close()


def endless(engine: Engine) -> list[list[float]]:
    """Biases that keep an answer from ending by itself."""
    return [[token, float("-inf")] for token in sorted(engine.loaded.model.end_tokens)]
