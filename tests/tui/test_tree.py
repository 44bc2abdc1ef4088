"""Branches: edit, answer again, other versions, go on, delete and undo."""

from __future__ import annotations

from functools import partial

import pytest
from textual import events

from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets import transcript
from localspec.tui.widgets.transcript import Bubble
from tests.tui.conftest import MakeApp, answered, front, say, until

pytestmark = pytest.mark.asyncio


def contents(app: ChatApp) -> list[str]:
    return [message.content for message in front(app).path]


def focus(app: ChatApp) -> object:
    return app.focused


def _written(app: ChatApp, text: str) -> bool:
    return front(app).composer.text == text


async def test_answering_again_makes_a_sibling_and_the_arrows_change_between_them(make_app: MakeApp) -> None:
    app = make_app("one", "two")
    async with app.run_test() as pilot:
        await say(pilot, "Hello")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: contents(app)[1:] == ["two"])
        await answered(pilot)
        bubble = front(app).transcript.bubbles[1]
        assert bubble.message.siblings == tuple(sorted(bubble.message.siblings))
        assert "2/2" in str(bubble.query_one(".head").content)  # type: ignore[attr-defined]
        bubble.focus()
        await pilot.press("left")
        await until(pilot, lambda: contents(app) == ["Hello", "one"])
        assert isinstance(app.focused, Bubble)
        assert app.focused.message.content == "one"
        await pilot.press("right")
        await until(pilot, lambda: contents(app) == ["Hello", "two"])
        seeds = [app.session.archive.message(number).seed for number in bubble.message.siblings]
        assert len(set(seeds)) == 2


async def test_clicking_the_arrow_changes_the_version(make_app: MakeApp) -> None:
    app = make_app("one", "two")
    async with app.run_test() as pilot:
        await say(pilot, "Hello")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: contents(app)[1:] == ["two"])
        await answered(pilot)
        head = front(app).transcript.bubbles[1].query_one(".head")
        column = str(head.content).index("◂")  # type: ignore[attr-defined]
        await pilot.click(head, offset=(column, 0))
        await until(pilot, lambda: contents(app) == ["Hello", "one"])


async def test_an_edited_message_is_sent_as_another_version(make_app: MakeApp) -> None:
    app = make_app("to red", "to blue")
    async with app.run_test() as pilot:
        await say(pilot, "Say red")
        await pilot.press(*"kept")
        await pilot.press("ctrl+g")
        assert front(app).composer.text == "Say red"
        assert front(app).composer.has_class("editing")
        front(app).composer.put("Say blue")
        await pilot.press("enter")
        await until(pilot, lambda: contents(app) == ["Say blue", "to blue"])
        await answered(pilot)
        assert front(app).composer.text == "kept"
        assert not front(app).composer.has_class("editing")
        front(app).transcript.bubbles[0].focus()
        await pilot.press("left")
        await until(pilot, lambda: contents(app) == ["Say red", "to red"])


async def test_escape_gives_up_editing(make_app: MakeApp) -> None:
    app = make_app("answer")
    async with app.run_test() as pilot:
        await say(pilot, "Question")
        await pilot.press("ctrl+g", "escape")
        assert front(app).editing is None
        assert front(app).composer.text == ""
        assert contents(app) == ["Question", "answer"]


async def test_an_answer_goes_on(make_app: MakeApp) -> None:
    app = make_app("It was", " a dark night.")
    async with app.run_test() as pilot:
        await say(pilot, "Tell")
        front(app).transcript.bubbles[1].focus()
        await pilot.press("o")
        await until(pilot, lambda: contents(app) == ["Tell", "It was a dark night."])
        await answered(pilot)
        question = app.session.answerer.questions[1]  # type: ignore[attr-defined]
        assert question.prefix == "It was"
        assert [message.role for message in question.messages] == ["user"]


async def test_a_deleted_message_and_chat_come_back(make_app: MakeApp) -> None:
    app = make_app("a", "b")
    async with app.run_test() as pilot:
        await say(pilot, "one")
        await say(pilot, "two")
        front(app).transcript.bubbles[2].focus()
        await pilot.press("delete")
        await until(pilot, lambda: contents(app) == ["one", "a"])
        front(app).composer.put("/undo")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: contents(app) == ["one", "a", "two", "b"])
        chat = front(app).chat_id
        front(app).composer.put("/delete")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: front(app).chat_id != chat)
        front(app).composer.put("/undo")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: front(app).chat_id == chat)
        assert contents(app) == ["one", "a", "two", "b"]


async def test_the_focus_walks_over_messages_and_back_to_the_input(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "one")
        await pilot.press("ctrl+up")
        assert focus(app) is front(app).transcript.bubbles[1]
        await pilot.press("up")
        assert focus(app) is front(app).transcript.bubbles[0]
        await pilot.press("ctrl+down", "ctrl+down")
        assert focus(app) is front(app).composer
        await pilot.press("ctrl+up", "i")
        await until(pilot, lambda: focus(app) is front(app).composer)
        assert front(app).composer.text == ""


async def test_words_typed_on_a_message_go_to_the_input(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "_WORD_SECONDS", 60.0)  # as long as a busy machine may take between two keys
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "one")
        for word in ("read", "edit", "hello"):  # r, e: keys of a message; h: none
            front(app).composer.put("")
            front(app).transcript.bubbles[1].focus()
            await pilot.press(*word)
            await until(pilot, partial(_written, app, word))
            assert focus(app) is front(app).composer
        assert front(app).editing is None
        assert len(app.session.answerer.questions) == 1  # type: ignore[attr-defined]


async def test_enter_and_words_in_one_burst_are_not_sent(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "_WORD_SECONDS", 60.0)
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "one")
        front(app).transcript.bubbles[1].focus()
        await pilot.pause()
        assert app._driver is not None
        for key, character in (("enter", "\r"), *zip("draft", "draft", strict=True)):  # as a slow line delivers them
            event = events.Key(key, character)
            event.set_sender(app)
            app._driver.send_message(event)
        await until(pilot, partial(_written, app, "draft"))
        assert len(front(app).path) == 2


async def test_the_input_has_the_focus_after_sending_and_stopping(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "one")
        assert focus(app) is front(app).composer
        front(app).transcript.bubbles[1].focus()
        await pilot.press("escape")
        assert focus(app) is front(app).composer
        await pilot.press(*"red", "enter")
        await until(pilot, lambda: len(front(app).path) == 4)
        assert front(app).path[2].content == "red"


async def test_a_paste_on_a_message_goes_to_the_input(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "one")
        bubble = front(app).transcript.bubbles[1]
        bubble.focus()
        bubble.post_message(events.Paste("from elsewhere"))
        await until(pilot, lambda: front(app).composer.text == "from elsewhere")
