"""What the engine warns of is a note while the chat has the screen."""

from __future__ import annotations

import logging
from functools import partial
from unittest.mock import patch

import pytest
from textual.widgets import Input
from textual.widgets._toast import Toast, ToastRack

from localspec.errors import LocalspecError
from localspec.runtime.kept.corpus import folder
from localspec.tui.screens.commands import SlashCommands
from localspec.tui.widgets.dialogs import say as note
from localspec.tui.widgets.dialogs import shown
from localspec.tui.widgets.meter import Meter
from tests.tui.conftest import MakeApp, front, say, until


def test_warnings_are_handed_over_and_nothing_else_is() -> None:
    logger, notes = logging.getLogger("localspec"), list[str]()
    with shown(notes.append):
        logger.warning("The drafter %s is not used any more: %s.", "echo", "it tired")
        logger.info("nothing")
        assert not logger.propagate, "nobody writes across the screen"
    logger.warning("afterwards")
    assert notes == ["The drafter echo is not used any more: it tired."]
    assert logger.propagate


@pytest.mark.asyncio
async def test_a_warning_is_a_note_and_one_that_comes_too_late_is_kept(make_app: MakeApp) -> None:
    app, logger = make_app(), logging.getLogger("localspec")
    with shown(app.warn):
        logger.warning("too early")
        async with app.run_test() as pilot:
            logger.warning("in\x1b[2J time")
            await until(pilot, lambda: any(note.message == "in time" for note in app._notifications))
            app.exit(0)
            logger.warning("while it is left")
            await pilot.pause()
        logger.warning("after\x1b]0;title\x07wards")
    assert app.unseen == ["too early", "while it is left", "afterwards"]


@pytest.mark.asyncio
async def test_answers_of_a_deleted_chat_that_stay_in_the_corpus_are_said(make_app: MakeApp) -> None:
    (folder() / "one.sqlite").mkdir(parents=True)  # where a file should be
    app = make_app("a")
    with shown(app.warn):
        async with app.run_test() as pilot:
            await say(pilot, "Hello")
            await SlashCommands(app.chat_screen).run("delete", "")
            await until(pilot, lambda: any("cannot be taken out of the" in note.message for note in app._notifications))


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
async def test_notes_stand_above_the_input_and_the_meter(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app("a")
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None)
        note(app, "Ctrl+C again leaves.")
        rack = app.screen.get_child_by_type(ToastRack)
        await until(pilot, lambda: rack.query_one(Toast).region.height)
        toast, composer = rack.query_one(Toast), front(app).composer
        for lines in (1, 5):  # an input that grows lifts the note
            composer.put("\n".join(["text"] * lines))
            await until(pilot, partial(lambda lines: composer.region.height >= lines + 2, lines))
            await until(pilot, lambda: toast.region.y >= 0 and toast.region.bottom <= composer.region.y)
            assert not toast.region.overlaps(app.screen.query_one(Meter).region)


@pytest.mark.asyncio
async def test_a_long_note_is_seen_as_a_whole_in_40_columns_and_12_lines(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(size=(40, 12), notifications=True) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None)
        note(app, "There is no command /nosuch; F1 lists them. A space in front sends it as text. " * 2)
        rack = app.screen.get_child_by_type(ToastRack)
        await until(pilot, lambda: rack.query_one(Toast).region.height > 1)
        await until(pilot, lambda: rack.query_one(Toast).region.bottom <= front(app).composer.region.y)
        assert rack.query_one(Toast).region.y >= 0


@pytest.mark.asyncio
async def test_a_note_that_is_said_again_stands_there_once(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(notifications=True) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None)
        for text in ("There is nothing to bring back.", "Tags: a.", "There is nothing to bring back."):
            note(app, text)
            await until(pilot, partial(lambda text: [*app._notifications][-1].message == text, text))
        await until(pilot, lambda: len(app.screen.query(Toast)) == 2)
        assert [one.message for one in app._notifications] == ["Tags: a.", "There is nothing to bring back."]


@pytest.mark.asyncio
async def test_notes_do_not_lie_over_what_is_asked(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None)
        note(app, "Name the file to take in. " * 3)
        front(app).composer.put("/rename")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: app.screen.query(Toast) and app.screen.query(Input))
        field = app.screen.query_one(Input)
        await until(pilot, lambda: app.screen.query_one(Toast).region.height > 1)
        assert not app.screen.query_one(Toast).region.overlaps(field.region)


@pytest.mark.asyncio
async def test_a_title_that_cannot_be_written_is_said(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await say(pilot, "Hello")
        archive, commands = app.session.archive, SlashCommands(app.chat_screen)
        with patch.object(archive, "update_chat", side_effect=LocalspecError("The archive is in use.")):
            await commands.run("rename", "Held")
            await until(pilot, lambda: any("in use" in one.message for one in app._notifications))
        await commands.run("rename", "")
        await until(pilot, lambda: app.screen.query(Input))
        archive.delete_chat(front(app).chat_id)  # as another window may
        await pilot.press("x", "enter")
        await until(pilot, lambda: any("There is no chat" in one.message for one in app._notifications))
