"""Prompts sent while an answer is under way."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from localspec.chat.archive.archive import Archive
from localspec.tui.shell.app import ChatApp
from tests.tui.conftest import MakeApp, answered, front, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio


def held(*texts: str) -> tuple[ReplayAnswerer, threading.Event]:
    """Answers with these texts; each waits for the event before its end."""
    answerer = ReplayAnswerer(Recording([Recorded.of_text(text) for text in texts], {}))
    answerer.hold = threading.Event()
    return answerer, answerer.hold


def queued(app: ChatApp) -> list[str]:
    """As the list shows them: the first line of each."""
    queue = front(app).queue
    lines = [str(queue.get_option_at_index(place).prompt) for place in range(queue.option_count)]
    assert len(lines) == len(queue.prompts)
    assert queue.display == bool(lines)
    return [line.split("  ")[1] for line in lines]


def said(app: ChatApp) -> list[str]:
    return [message.content for message in front(app).path]


async def write(pilot: Pilot[Any], *texts: str) -> None:
    """Sends texts, the first of which is answered."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    for text in texts:
        before = len(front(app).path) + len(front(app).queue.prompts)
        front(app).composer.put(text)
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) + len(front(app).queue.prompts) > before)  # noqa: B023
    await until(pilot, lambda: front(app).answer is not None)


async def test_queued_prompts_are_sent_in_their_order_each_after_an_answer(make_app: MakeApp) -> None:
    answerer, hold = held("one.", "two.", "three.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "A", "B\nsecond line", "C")
        assert queued(app) == ["B", "C"]
        assert said(app)[0] == "A"
        assert len(said(app)) == 2
        assert front(app).queue.region.bottom <= front(app).composer.region.y
        assert len(answerer.questions) == 1
        hold.set()
        await until(pilot, lambda: len(front(app).path) == 6)
        await answered(pilot)
        assert said(app) == ["A", "one.", "B\nsecond line", "two.", "C", "three."]
        assert [message.content for message in answerer.questions[2].messages] == said(app)[:5]
        assert queued(app) == []


async def test_two_prompts_at_once_are_one_answer_and_one_in_the_queue(make_app: MakeApp) -> None:
    answerer, hold = held("one.", "two.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        front(app).composer.put("A")
        front(app).composer.send()
        front(app).composer.send()  # before the first has been handled: its text is still there
        await until(pilot, lambda: front(app).answer is not None)
        assert (said(app)[0], queued(app)) == ("A", ["A"])
        hold.set()
        await until(pilot, lambda: len(front(app).path) == 4)
        await answered(pilot)
        assert said(app) == ["A", "one.", "A", "two."]


async def test_up_takes_the_last_one_back_and_it_returns_to_its_place(make_app: MakeApp) -> None:
    answerer, hold = held("one.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "A", "B", "C", "D")
        await pilot.press("up")
        await until(pilot, lambda: (front(app).composer.text, queued(app)) == ("D", ["B", "C"]))
        await pilot.press("!", "enter")
        await until(pilot, lambda: (front(app).composer.text, queued(app)) == ("", ["B", "C", "D!"]))
        await pilot.press("shift+tab", "home", "enter")  # the list, its first row
        await until(pilot, lambda: (front(app).composer.text, queued(app)) == ("B", ["C", "D!"]))
        await until(pilot, lambda: app.focused is front(app).composer)
        await pilot.press("?", "enter")
        await until(pilot, lambda: queued(app) == ["B?", "C", "D!"])
        await pilot.press("shift+tab", "home", "down", "delete")
        assert queued(app) == ["B?", "D!"]
        await pilot.press("delete", "delete")
        assert queued(app) == []
        assert app.focused is front(app).composer
        hold.set()
        await answered(pilot)
        assert said(app) == ["A", "one."]


async def test_a_click_takes_a_prompt_back_before_what_is_written(make_app: MakeApp) -> None:
    answerer, hold = held("one.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "A", "B", "C")
        front(app).composer.put("own")
        await pilot.click(front(app).queue, offset=(3, 0))
        await until(pilot, lambda: queued(app) == ["C"])
        assert front(app).composer.text == "B\n\nown"
        await pilot.press("escape")
        hold.set()


async def test_escape_hands_the_queue_back_with_its_pastes(make_app: MakeApp) -> None:
    answerer, hold = held("one.", "two.")
    app = make_app(answerer=answerer)
    paste = "\n".join(map(str, range(20)))
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "A", "B")
        front(app).composer.put("C ")
        front(app).composer.post_message(events.Paste(paste))
        await until(pilot, lambda: "[pasted" in front(app).composer.text)
        await pilot.press("enter")
        await until(pilot, lambda: len(queued(app)) == 2)
        front(app).composer.put("own")
        await pilot.press("escape")
        await until(pilot, lambda: front(app).answer is None)
        assert front(app).composer.text == "B\n\nC  [pasted text 1: 20 lines]\n\nown"
        assert (queued(app), len(said(app)), front(app).path[1].state) == ([], 2, "stopped")
        hold.set()
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) == 4)
        await answered(pilot)
        assert [item.content for item in front(app).path[2].attachments] == [paste]


async def test_a_prompt_that_cannot_be_sent_comes_back_with_those_after_it(make_app: MakeApp) -> None:
    Path("bad.txt").write_bytes(b"\xff\xfe\x00")
    answerer, hold = held("one.", "two.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "A", "see @bad.txt", "C")
        hold.set()
        await until(pilot, lambda: front(app).composer.text)
        assert front(app).composer.text == "see @bad.txt\n\nC"
        assert (said(app), queued(app)) == (["A", "one."], [])


async def test_each_tab_has_a_queue_and_closing_keeps_it_as_unsent_text(make_app: MakeApp, archive: Archive) -> None:
    answerer, hold = held("one.", "two.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "A", "B")
        first = front(app).chat_id
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).chat_id != first)
        second = front(app).chat_id
        assert queued(app) == []
        await write(pilot, "X", "Y")
        front(app).composer.fold("pasted\nlines")
        await pilot.press("ctrl+f4")
        await until(pilot, lambda: front(app).chat_id == first)
        assert archive.chat(second).unsent == "Y\n\npasted\nlines"
        assert queued(app) == ["B"]
        front(app).composer.put("own")
        await pilot.press("ctrl+q")
        hold.set()
    assert archive.chat(first).unsent == "B\n\nown"
    assert [message.content for message in archive.path(first)][:1] == ["A"]


async def test_a_queue_is_kept_while_it_waits(make_app: MakeApp, archive: Archive) -> None:
    answerer, hold = held("one.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "A", "B", "C")
        await until(pilot, lambda: archive.chat(front(app).chat_id).unsent == "B\n\nC")
        await pilot.press("escape")
        hold.set()


async def test_unsent_text_waits_for_another_program(make_app: MakeApp, archive: Archive) -> None:
    assert archive.file is not None
    archive._connection.execute("PRAGMA busy_timeout = 10")
    app = make_app("one.")
    async with app.run_test(size=(80, 24)) as pilot:
        front(app).composer.put("A")
        await pilot.press("enter")
        await answered(pilot)
        with closing(sqlite3.connect(archive.file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            front(app).composer.put("not sent yet")
            await asyncio.sleep(1.5)  # it is to be saved after 0.7 s
        await until(pilot, lambda: archive.chat(front(app).chat_id).unsent == "not sent yet")
        assert app.return_code is None
