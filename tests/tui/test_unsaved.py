"""A full disk: a line that stays, everything is saved once there is room, and quitting asks until then."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import OptionList

from localspec.chat.archive.archive import Archive
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences, Session
from localspec.tui.widgets.chat_tabs import OpenTabs, Unsaved
from localspec.tui.widgets.dialogs import ChoiceDialog
from tests.chat.test_arrears import no_room
from tests.tui.conftest import MakeApp, front, say, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio
LONG = "words " * 20_000
"""An answer that needs more room than there is."""


def answerer(text: str) -> ReplayAnswerer:
    return ReplayAnswerer(Recording([Recorded.of_text(text)], {}))


async def test_a_full_disk_is_said_in_a_line_that_stays_and_quitting_asks(make_app: MakeApp) -> None:
    app = make_app(LONG)
    async with app.run_test(size=(100, 30)) as pilot:
        line = app.chat_screen.query_one(Unsaved)
        await until(pilot, lambda: app.session.facts is not None)
        assert not line.display
        with no_room(100_000):
            await say(pilot, "Go")
            await until(pilot, lambda: not app.session.archive.persistent)
            await until(pilot, lambda: line.display and "cannot be written" in str(line.content))
            assert len(front(app).path[-1].content) > 100_000, "the chat goes on"
            await pilot.press("ctrl+q")
            await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
            await pilot.press("ctrl+q", "enter")
            await until(pilot, lambda: app.screen is app.chat_screen)
            assert line.display
            await pilot.press("ctrl+q")
            await until(pilot, lambda: isinstance(app.screen, ChoiceDialog) and app.screen.query(OptionList))
            await pilot.press("down", "enter")
            await until(pilot, lambda: app._exit)


async def test_quitting_saves_and_does_not_ask_if_there_is_room_by_then(
    make_app: MakeApp, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.tui.widgets.chat_tabs._TRY_SECONDS", 1e6)
    app = make_app(LONG)
    async with app.run_test(size=(100, 30)) as pilot:
        with no_room(100_000):
            await say(pilot, "Go")
            await until(pilot, lambda: not archive.persistent)
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app._exit)
        assert archive.persistent


async def test_quitting_does_not_ask_while_chats_last(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "Go")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app._exit)


async def test_all_is_saved_once_there_is_room(
    folders: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.tui.widgets.chat_tabs._TRY_SECONDS", 0.1)
    ballast, file = small_disk / "ballast", small_disk / "chats.sqlite3"
    with Archive.open(file) as archive:
        app = ChatApp(Session(answerer(LONG), archive, Preferences()))
        async with app.run_test(size=(100, 30)) as pilot:
            line = app.chat_screen.query_one(Unsaved)
            await until(pilot, lambda: app.session.facts is not None)
            ballast.write_bytes(b"x" * 2_800_000)
            await say(pilot, "Go")
            await until(pilot, lambda: line.display and "disk is full" in str(line.content))
            await pilot.press("ctrl+n")
            await until(pilot, lambda: front(app).path == [])
            await say(pilot, "Go on")
            await pilot.press(*"draft")
            assert not archive.persistent
            ballast.unlink()
            await until(pilot, lambda: archive.persistent)
            await until(pilot, lambda: not line.display)
            assert any("are saved" in note.message for note in app._notifications)
            with Archive.open(file) as other:  # not only when it is left
                paths = [[message.content for message in other.path(chat.id)] for chat in reversed(other.chats())]
                assert paths == [["Go", LONG], ["Go on", LONG]]
                assert len(OpenTabs.load(other).chats(other)) == 2
            await pilot.press("ctrl+q")
            await until(pilot, lambda: app._exit)
    with Archive.open(file) as archive:
        again = ChatApp(Session(answerer("More."), archive, Preferences()))
        async with again.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: len(again.chat_screen.panes) == 2)
            assert front(again).composer.text == "draft"
