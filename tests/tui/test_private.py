"""A private chat: a sign says so, and nothing of it is on disk, in the prompts, the caches or the corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.pilot import Pilot

from localspec.chat.archive.archive import Archive
from localspec.tui.shell.app import ChatApp
from tests.tui.conftest import MakeApp, front, of_child, say, until

pytestmark = pytest.mark.asyncio
SECRET = "Repeat this text exactly: the wombat sleeps in Wagga Wagga by the river. " * 4


def shown(app: ChatApp) -> bool:
    return app.chat_screen.query_one("#private").display


async def toggle(pilot: Pilot[int], app: ChatApp) -> None:
    private = app.session.private
    front(app).composer.put("/private")
    await pilot.press("enter")
    await until(pilot, lambda: app.session.private != private and front(app).composer.has_focus)


async def test_nothing_of_a_private_chat_joins_the_others(make_app: MakeApp, archive: Archive) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await say(pilot, "one")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: len(app.chat_screen.panes) == 2)
        await say(pilot, "two")
        assert not shown(app)
        await toggle(pilot, app)
        assert shown(app)
        assert len(app.chat_screen.panes) == 1
        await say(pilot, SECRET)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: len(app.chat_screen.panes) == 2)
        await pilot.press("up")
        assert front(app).composer.text == SECRET
        question = app.session.answerer.questions[-1]  # type: ignore[attr-defined]
        assert (question.private, question.chat) == (True, None)
        await toggle(pilot, app)
        await until(pilot, lambda: len(app.chat_screen.panes) == 2 and not shown(app))
        assert front(app).path[0].content == "two"
        await say(pilot, "three")
        assert app.session.answerer.questions[-1].chat == front(app).key  # type: ignore[attr-defined]
    assert archive.prompts() == ["three", "two", "one"]
    assert archive.search("wombat") == []
    assert archive.file is not None
    tabs = json.loads(archive.file.with_name("tabs.json").read_text())["tabs"]
    assert [archive.chat_of_key(key) is not None for key in tabs] == [True, True]


async def test_it_may_begin_so_and_leaves_the_tabs_of_last_time(make_app: MakeApp, archive: Archive) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await say(pilot, "one")
        await pilot.press("ctrl+q")
    app = make_app("Another.", private=True)
    async with app.run_test(size=(100, 30)) as pilot:
        assert shown(app)
        await say(pilot, SECRET)
        await pilot.press("ctrl+q")
    app.session.close()
    again = make_app("Another.")
    async with again.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: front(again).path and front(again).path[0].content == "one")
    assert archive.prompts() == ["one"]


async def test_nothing_of_it_is_in_a_file(make_app: MakeApp, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real engine, which keeps caches and a corpus of other chats."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(folders / "cache"))

    def kept() -> set[str]:
        found = [*(folders / "cache").rglob("*"), *(folders / "data" / "corpus").rglob("*")]
        return {path.name for path in found if "chat" in str(path) or "corpus" in str(path)}

    for private in (True, False):
        local = of_child(exact="off", corpus="on")
        app = make_app(answerer=local, private=private, begin={"temperature": 0.0, "max_tokens": 20})
        async with app.run_test(size=(100, 30)) as pilot:
            await say(pilot, SECRET)
        app.session.close()
        assert bool(kept()) != private, kept()
