"""`mcp.json` of the current folder: asked for when the chat opens, and not again while it stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.widgets import OptionList, Static

from localspec.tools.servers import Server
from localspec.tools.toolbox import FolderFile
from localspec.tui.widgets.dialogs import ChoiceDialog
from tests.tui.conftest import MakeApp, until


def found() -> FolderFile:
    folder = FolderFile.find([])
    assert folder is not None
    return folder


@pytest.fixture
def file(folders: Path) -> Path:
    path = Path("mcp.json")
    path.write_text(
        json.dumps({"mcpServers": {"theirs": {"command": "touch", "args": ["started"]}, "both": {"command": "a"}}})
    )
    return path


@pytest.mark.asyncio
@pytest.mark.parametrize("keys", [["enter"], ["escape"]])
async def test_what_is_not_agreed_to_is_left_out(make_app: MakeApp, file: Path, keys: list[str]) -> None:
    """Enter at once, such as of who types already, agrees to nothing."""
    app = make_app(folder=found(), servers=[Server("mine", "x")])
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        shown = str(app.screen.query_exactly_one(".question", Static).content)
        assert str(file.resolve()) in shown
        assert "theirs: touch started" in shown
        await pilot.press(*keys)
        await until(pilot, lambda: app.screen is app.chat_screen)
        assert [one.name for one in app.session.servers] == ["mine"]
    assert not found().is_allowed
    assert not Path("started").exists()


@pytest.mark.asyncio
async def test_what_is_agreed_to_is_used_until_the_file_changes(make_app: MakeApp, file: Path) -> None:
    app = make_app(folder=found(), servers=[Server("both", "mine")])
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("2", "enter")
        await until(pilot, lambda: app.screen is app.chat_screen)
        assert {one.name: one.command for one in app.session.servers} == {"theirs": "touch", "both": "mine"}
    assert found().is_allowed
    file.write_text(file.read_text().replace("touch", "rm"))
    assert not found().is_allowed


@pytest.mark.asyncio
async def test_the_answers_to_a_long_question_are_in_view(make_app: MakeApp, file: Path) -> None:
    entries = {f"server{number}": {"command": "sh", "args": ["word"] * 50} for number in range(20)}
    file.write_text(json.dumps({"mcpServers": entries}))
    app = make_app(folder=found())
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        answers = app.screen.query_exactly_one(OptionList)
        box = app.screen.query_exactly_one(".dialog")
        await until(pilot, lambda: box.region.contains_region(answers.region), 20)
        question = app.screen.query_exactly_one(".dialog > VerticalScroll")
        assert question.max_scroll_y > 0
