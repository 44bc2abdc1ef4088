"""Answers that are edited, and chats that branch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from textual import events

from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.transcript import Bubble
from tests.tui.conftest import MakeApp, front, say, until

pytestmark = pytest.mark.asyncio


async def test_an_edited_answer_is_another_version_and_nothing_is_asked(make_app: MakeApp) -> None:
    app = make_app("The moon is a cheese.", "Yes.")
    async with app.run_test(size=(100, 30)) as pilot:
        await say(pilot, "What is the moon?")
        await pilot.press("ctrl+up")
        await pilot.press("e")
        await until(pilot, lambda: front(app).composer.text == "The moon is a cheese.")
        assert "keeps it as another version" in str(front(app).composer.border_title)
        front(app).composer.put("The moon is a stone.")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).path[-1].content == "The moon is a stone.")
        assert front(app).path[-1].role == "assistant"
        assert len(front(app).path) == 2
        assert len(front(app).path[-1].siblings) == 2
        assert front(app).answer is None
        await say(pilot, "Sure?")
        asked = app.session.answerer.questions[-1].messages  # type: ignore[attr-defined]
        assert [message.content for message in asked] == ["What is the moon?", "The moon is a stone.", "Sure?"]


async def test_a_branch_is_a_new_chat_with_the_messages_so_far(make_app: MakeApp) -> None:
    app = make_app("a", "b", "c")
    async with app.run_test(size=(100, 40)) as pilot:
        front(app).composer.put("/branch")
        await pilot.press("enter")
        await until(pilot, lambda: any("nothing to branch from" in note.message for note in app._notifications))
        await say(pilot, "one")
        await say(pilot, "two")
        old = front(app).chat_id
        await pilot.press("ctrl+up", "ctrl+up", "ctrl+up")
        await pilot.press("b")
        await until(pilot, lambda: front(app).chat_id != old)
        assert [message.content for message in front(app).path] == ["one", "a"]
        assert front(app).path[-1].stats == app.session.archive.path(old)[1].stats
        await say(pilot, "another two")
        assert [message.content for message in front(app).path] == ["one", "a", "another two", "c"]
        assert [message.content for message in app.session.archive.path(old)] == ["one", "a", "two", "b"]


async def test_a_long_paste_into_an_answer_is_text_and_a_path_in_it_a_word(make_app: MakeApp, folders: Path) -> None:
    Path("notes.md").write_text("Notes.")
    app = make_app("one")
    text = "\n".join([*(f"row {number}" for number in range(30)), "@notes.md"])
    async with app.run_test() as pilot:
        await say(pilot, "first")
        await pilot.press("ctrl+up", "e")
        await until(pilot, lambda: front(app).composer.text == "one")
        front(app).composer.put("")
        front(app).composer.post_message(events.Paste(text))
        await until(pilot, lambda: front(app).composer.text == text)
        await pilot.press("enter")
        await until(pilot, lambda: front(app).editing is None)
        assert front(app).path[-1].content == text
        assert front(app).path[-1].attachments == ()
        front(app).composer.post_message(events.Paste(text))
        await until(pilot, lambda: front(app).composer.text == "[pasted text 1: 31 lines]")


async def test_nothing_is_sent_where_nothing_is_written(make_app: MakeApp) -> None:
    """Of a long paste whose mark was deleted an empty message was sent."""
    app = make_app("one")
    async with app.run_test() as pilot:
        front(app).composer.fold("a\n" * 10)
        front(app).composer.put("")
        await pilot.press("enter")
        await pilot.pause()
        assert front(app).path == []


async def test_another_version_of_a_message_is_in_view(make_app: MakeApp) -> None:
    tall = "\n\n".join(f"Paragraph {number}." for number in range(40))
    app = make_app(tall, tall, "short")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "one")
        await say(pilot, "two")
        await pilot.press("ctrl+g", *" more", "enter")
        await until(pilot, lambda: front(app).path[-1].content == "short" and front(app).answer is None)
        await pilot.press("ctrl+up", "up")
        for key, wanted in (("left", "two"), ("right", "two more"), ("left", "two")):
            await pilot.press(key)
            await until(pilot, partial(_seen, app, wanted))
            for _ in range(5):
                await pilot.pause()
            await until(pilot, partial(_seen, app, wanted))  # on a busy machine a layout may just be under way


def _seen(app: ChatApp, text: str) -> bool:
    """Whether the message with this text has the focus, and its beginning is in view."""
    bubble = app.focused
    if not isinstance(bubble, Bubble) or bubble.message.content != text:
        return False
    return front(app).transcript.region.contains_point(bubble.region.offset)
