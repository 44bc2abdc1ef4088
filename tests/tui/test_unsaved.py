"""A full disk: a line that stays, and a question before the chat is left."""

from __future__ import annotations

import pytest
from textual.widgets import OptionList

from localspec.tui.app import ChatApp
from localspec.tui.dialogs import Choice
from localspec.tui.widgets.unsaved import Unsaved
from tests.tui.conftest import MakeApp, front, say, until

pytestmark = pytest.mark.asyncio


def fill_the_disk(app: ChatApp) -> None:
    """Its file may not grow any more."""
    database = app.archive._database
    pages = database.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    database.read(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages + 1}"))


async def test_a_full_disk_is_said_in_a_line_that_stays_and_quitting_asks(make_app: MakeApp) -> None:
    app = make_app("words " * 20_000)
    async with app.run_test(size=(100, 30)) as pilot:
        line = app.chat_screen.query_one(Unsaved)
        await until(pilot, lambda: app.facts is not None)
        assert not line.display
        fill_the_disk(app)
        await say(pilot, "Go")
        await until(pilot, lambda: not app.archive.persistent)
        await until(pilot, lambda: line.display and "disk is full" in str(line.content))
        assert len(front(app).path[-1].content) > 100_000, "the chat goes on"
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, Choice))
        await pilot.press("ctrl+q", "enter")
        await until(pilot, lambda: app.screen is app.chat_screen)
        assert line.display
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, Choice) and app.screen.query(OptionList))
        await pilot.press("down", "enter")
        await until(pilot, lambda: app._exit)


async def test_quitting_does_not_ask_while_chats_last(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "Go")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app._exit)
