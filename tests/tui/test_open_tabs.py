"""Every tab is back after a restart, the same one in front; only that one is drawn until another is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec.chat.archive.archive import Archive
from localspec.runtime.engine import Engine
from localspec.runtime.kept.caches import CacheFolder
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences
from localspec.tui.widgets.chat_tabs import OpenTabs
from localspec.tui.widgets.pane import tab_label
from tests.tui.conftest import MakeApp, front, here, say, until

pytestmark = pytest.mark.asyncio


def questions(app: ChatApp) -> list[str]:
    """The first message of each tab, in order."""
    return [(*(message.content for message in pane.path), "")[0] for pane in app.chat_screen.panes]


async def three(pilot: Pilot[Any], app: ChatApp) -> None:
    """Three tabs, the second in front, with unsent text in the third."""
    await say(pilot, "one")
    for text in ("two", "three"):
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).path == [])
        await say(pilot, text)
    await pilot.press(*"draft")
    await pilot.press("ctrl+pageup")
    await until(pilot, lambda: front(app).path[0].content == "two")


async def back(pilot: Pilot[Any], app: ChatApp, count: int) -> None:
    await until(pilot, lambda: len(app.chat_screen.panes) == count)
    labels = [tab.label_text for tab in app.query("ContentTab").results()]  # type: ignore[attr-defined]
    assert labels == [tab_label(pane.chat) for pane in app.chat_screen.panes], "as they stand on the screen"


async def test_all_tabs_are_back_and_the_same_one_is_in_front(make_app: MakeApp) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await three(pilot, app)
        await pilot.press("ctrl+q")
    again = make_app("Another.")
    async with again.run_test(size=(100, 30)) as pilot:
        await back(pilot, again, 3)
        assert questions(again) == ["one", "two", "three"]
        assert front(again).path[0].content == "two"
        assert front(again).composer.has_focus
        drawn = [len(pane.transcript.bubbles) for pane in again.chat_screen.panes]
        assert drawn == [0, 2, 0], "only the chat in front is drawn"
        await pilot.press("ctrl+pagedown")
        await until(pilot, lambda: len(front(again).transcript.bubbles) == 2)
        assert (front(again).path[0].content, front(again).composer.text) == ("three", "draft")
        await say(pilot, "more")
        await pilot.press("ctrl+f4")
        await until(pilot, lambda: len(again.chat_screen.panes) == 2)
    last = make_app("Again.")
    async with last.run_test(size=(100, 30)) as pilot:
        await back(pilot, last, 2)
        assert questions(last) == ["one", "two"]


async def test_they_are_back_when_the_program_was_killed(make_app: MakeApp, archive: Archive) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await three(pilot, app)
        kept = OpenTabs.load(archive)  # what a program that is killed here leaves
        assert [chat.id for chat in kept.chats(archive)] == [pane.chat_id for pane in app.chat_screen.panes]
        assert kept.front == front(app).key


async def test_a_new_chat_at_the_start_comes_after_the_tabs_of_last_time(make_app: MakeApp) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await three(pilot, app)
    for options in ({"resume": False}, {"begin": {"temperature": 0.5}}):
        fresh = make_app("Another.", **options)
        async with fresh.run_test(size=(100, 30)) as pilot:
            assert front(fresh).path == []
            await back(pilot, fresh, 4)
            assert questions(fresh) == ["one", "two", "three", ""]
            assert front(fresh).path == []
    quiet = make_app("A third.", preferences=Preferences(resume=False))
    async with quiet.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert questions(quiet) == [""], "who does not want to go on where they left off"


async def test_a_tab_that_was_not_looked_at_leaves_what_another_localspec_wrote(
    make_app: MakeApp, archive: Archive
) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await three(pilot, app)
        await pilot.press("ctrl+q")
    again = make_app("Another.")
    async with again.run_test(size=(100, 30)) as pilot:
        await back(pilot, again, 3)
        third = again.chat_screen.panes[2].chat_id
        assert archive.chat(third).unsent == "draft"
        archive.update_chat(third, unsent="")  # it was sent there
        await pilot.press("ctrl+q")
        await until(pilot, lambda: again._exit)
    assert archive.chat(third).unsent == ""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tabs": 3}', '{"tabs": ["none", "none", 5], "front": null}'])
async def test_a_file_that_says_nothing_leaves_the_last_chat(make_app: MakeApp, archive: Archive, content: str) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await say(pilot, "one")
    assert archive.file is not None
    archive.file.with_name("tabs.json").write_text(content, encoding="utf-8")
    again = make_app("Another.")
    async with again.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert questions(again) == ["one"]


async def test_chats_that_are_deleted_or_empty_do_not_come_back(make_app: MakeApp, archive: Archive) -> None:
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await three(pilot, app)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).path == [])
        gone = app.chat_screen.panes[0].chat_id
    archive.delete_chat(gone)
    again = make_app("Another.")
    async with again.run_test(size=(100, 30)) as pilot:
        await back(pilot, again, 2)
        assert questions(again) == ["two", "three"]
        assert front(again).path[0].content == "three"


async def test_a_folder_that_cannot_be_written_costs_the_tabs_and_nothing_else(
    make_app: MakeApp, archive: Archive
) -> None:
    assert archive.file is not None
    archive.file.with_name("tabs.json").mkdir()
    app = make_app("An answer.")
    async with app.run_test(size=(100, 30)) as pilot:
        await three(pilot, app)
    assert not list(archive.file.parent.glob("tabs.*new"))


async def test_a_tab_that_is_back_goes_on_with_its_cache(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    long = "Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo. " * 12

    def load() -> ChatApp:
        local = here(lambda progress: Engine.load(progress=progress, exact="off"))
        return make_app(answerer=local, preferences=Preferences(parameters={"max_tokens": 8, "temperature": 0.0}))

    app = load()
    async with app.run_test(size=(100, 30)) as pilot:
        await say(pilot, "Repeat: " + long)
        first = front(app).key
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).path == [])
        await say(pilot, "Sort: " + long)
    app.session.answerer.close()
    assert all(CacheFolder().path(key).exists() for key in (first, OpenTabs.load(app.session.archive).front))
    again = load()
    async with again.run_test(size=(100, 30)) as pilot:
        await back(pilot, again, 2)
        for _ in range(2):
            await say(pilot, "And once more, please.")
            before, now = (message.stats for message in front(again).path[1::2])
            assert now["reused_tokens"] > before["prompt_tokens"] * 3 / 4
            await pilot.press("ctrl+pageup")
    again.session.answerer.close()
