"""Two windows on one archive: what the other one writes is shown, and neither takes the other's tabs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.archive.archive import Archive
from localspec.processes import Claim
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.chat_tabs import OpenTabs
from tests.tui.conftest import MakeApp, front, say, until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def other(folders: Path, archive: Archive) -> Iterator[Archive]:
    """The archive as another window has it open."""
    with Archive.open(folders / "chats.sqlite3") as opened:
        yield opened


def status(app: ChatApp) -> str:
    return str(app.query_one("#status").content)  # type: ignore[attr-defined]


async def test_an_answer_of_another_window_is_shown_as_it_grows(make_app: MakeApp, other: Archive) -> None:
    chat = other.new_chat()
    asked = other.append_user(chat.id, "How far is the moon?")
    writer = other.begin_answer(asked.id, model="far")
    writer.extend("It is ")
    writer.flush()
    app = make_app("mine")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "another window answers in this chat" in status(app))
        front(app).composer.put("And the sun?")
        await pilot.press("enter")
        await until(pilot, lambda: any("send it when that answer has ended" in n.message for n in app._notifications))
        assert front(app).composer.text == "And the sun?"
        writer.extend("far.")
        writer.flush()
        await until(pilot, lambda: front(app).transcript.bubbles[-1].message.content == "It is far.")
        writer.finish()
        await until(pilot, lambda: front(app).transcript.bubbles[-1].message.state == "done")
        await until(pilot, lambda: "another window" not in status(app))
        await pilot.press("enter")
        await until(pilot, lambda: front(app).path[-1].content == "mine")
        other.append_user(chat.id, "Said over there.")
        await until(pilot, lambda: front(app).transcript.bubbles[-1].message.content == "Said over there.")


async def test_an_answer_whose_window_has_gone_is_ended(
    make_app: MakeApp, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Archive.open(folders / "chats.sqlite3")
    chat = gone.new_chat()
    gone.begin_answer(gone.append_user(chat.id, "Hello?").id).extend("I was")
    app = make_app("mine")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "another window answers" in status(app))
        assert gone._claim is not None
        gone._claim.release()  # as the system does when a process ends
        await until(pilot, lambda: front(app).path[-1].state == "stopped")
        await until(pilot, lambda: "another window" not in status(app))
        assert not front(app).elsewhere
    gone.close()


async def test_a_second_window_leaves_the_tabs_of_the_first_alone(
    make_app: MakeApp, archive: Archive, folders: Path
) -> None:
    app = make_app("one")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "first")
        await pilot.press("ctrl+q")
    remembered = OpenTabs.load(archive)
    assert len(remembered.keys) == 1
    claim = Claim(folders / "tabs.window")
    second = make_app("two")
    async with second.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: any("Another window has" in n.message for n in second._notifications))
        assert front(second).path == []
        await say(pilot, "second")
        await pilot.press("ctrl+q")
    assert OpenTabs.load(archive) == remembered
    claim.release()
    third = make_app("three")
    async with third.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: front(third).path and front(third).path[0].content == "first")


async def test_looking_at_a_chat_does_not_change_its_date(make_app: MakeApp, archive: Archive) -> None:
    app = make_app("a", "b")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "one")
        old = archive.chat(front(app).chat_id)
        message = front(app).path[0].id
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).path == [])
        await say(pilot, "two")
        await app.chat_screen.open_chat(old.id, message)
        await until(pilot, lambda: front(app).chat_id == old.id)
        assert archive.chat(old.id).used == old.used
