"""Writing: lines, history, completion, pastes, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events
from textual.widgets import Static

from localspec.chat.archive.message import Attachment, Preset
from localspec.chat.text_file import LARGEST
from localspec.errors import UsageError
from localspec.tui.talk.files import attached, files, matching
from localspec.tui.talk.session import Preferences
from localspec.tui.widgets.composer import Suggestions
from tests.tui.conftest import MakeApp, answered, front, say, until


@pytest.mark.asyncio
async def test_several_lines(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        await pilot.press("a", "ctrl+j", "b", "\\", "enter", "c", "enter")
        await answered(pilot)
        assert front(app).path[0].content == "a\nb\nc"


@pytest.mark.asyncio
async def test_enter_may_begin_a_line_instead(make_app: MakeApp) -> None:
    app = make_app("ok", preferences=Preferences(enter_sends=False))
    async with app.run_test() as pilot:
        await pilot.press("a", "enter", "b", "ctrl+j")
        await answered(pilot)
        assert front(app).path[0].content == "a\nb"


@pytest.mark.asyncio
async def test_blank_input_sends_nothing(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        await pilot.press("enter", "space", "enter")
        await pilot.pause()
        assert front(app).path == []


@pytest.mark.asyncio
async def test_earlier_prompts_come_back_and_what_was_written_is_not_lost(make_app: MakeApp) -> None:
    app = make_app("a", "b")
    async with app.run_test() as pilot:
        await say(pilot, "first")
        await say(pilot, "second\nline")
        await pilot.press(*"own", "up")
        assert front(app).composer.text == "second\nline"
        await pilot.press("up", "up")
        assert front(app).composer.text == "first"
        await pilot.press("down", "down", "down")
        assert front(app).composer.text == "own"


@pytest.mark.asyncio
async def test_a_long_paste_becomes_an_attachment(make_app: MakeApp) -> None:
    app = make_app("ok")
    text = "\n".join(f"row {number}" for number in range(30))
    async with app.run_test() as pilot:
        await pilot.press(*"See ")
        front(app).composer.post_message(events.Paste(text))
        await until(pilot, lambda: "[pasted text 1: 30 lines]" in front(app).composer.text)
        await pilot.press("enter")
        await answered(pilot)
        assert front(app).path[0].attachments == (Attachment("pasted text 1", text),)
        assert front(app).path[0].content == "See "
        assert "row 29" in app.session.answerer.questions[0].messages[0].content  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_a_short_paste_is_text_without_control_characters(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        front(app).composer.post_message(events.Paste("a\x1b[31mb\x07c"))
        await until(pilot, lambda: front(app).composer.text == "abc")


@pytest.mark.asyncio
async def test_slash_commands_are_completed(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        await pilot.press(*"/ren")
        offered = front(app).query_one(Suggestions)
        await until(pilot, lambda: offered.display)
        await pilot.press("tab")
        assert front(app).composer.text == "/rename "
        await pilot.press(*"Better title", "enter")
        await until(pilot, lambda: front(app).chat.title == "Better title")
        assert front(app).composer.text == ""


@pytest.mark.asyncio
async def test_names_of_models_are_offered_after_their_command(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        await pilot.press(*"/model tiny-")
        offered = front(app).query_one(Suggestions)
        await until(pilot, lambda: offered.display and offered.option_count == 2)
        assert offered.highlighted is not None
        assert str(offered.get_option_at_index(offered.highlighted).prompt).strip() == "tiny-draft"
        await pilot.press("down", "tab")
        assert front(app).composer.text == "/model tiny-target "
        assert not offered.display
        front(app).composer.put("")
        await pilot.press(*"which /model tin")
        assert not offered.display


@pytest.mark.asyncio
async def test_names_of_presets_are_offered_with_what_they_say(make_app: MakeApp) -> None:
    app = make_app("ok")
    app.session.archive.save_preset(Preset("Short answers", "Be brief.\nVery."))
    async with app.run_test() as pilot:
        await pilot.press(*"/preset ")
        offered = front(app).query_one(Suggestions)
        await until(pilot, lambda: offered.display and offered.option_count == 1)
        assert str(offered.get_option_at_index(0).prompt) == "Short answers  Be brief.↵Very."
        await pilot.press(*"/model ")  # goes on as words of the preset's name
        assert not offered.display
        front(app).composer.put("")
        await pilot.press(*"/preset S")
        await until(pilot, lambda: offered.display)
        await pilot.press("tab", "enter")
        await until(pilot, lambda: front(app).chat.system == "Be brief.\nVery.")


@pytest.mark.asyncio
async def test_an_unknown_command_is_said_and_a_path_is_sent(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        front(app).composer.put("/nosuch thing")
        await pilot.press("enter")
        await until(pilot, lambda: any("/nosuch" in note.message for note in app._notifications))
        assert front(app).composer.text == "/nosuch thing"
        await say(pilot, "/usr/bin is a folder")
        assert front(app).path[0].content == "/usr/bin is a folder"


@pytest.mark.asyncio
async def test_files_are_completed_and_attached(make_app: MakeApp, folders: Path) -> None:
    Path("notes").mkdir()
    Path("notes/plan.md").write_text("The plan.")
    app = make_app("ok")
    async with app.run_test() as pilot:
        await pilot.press(*"Read @pla")
        offered = front(app).query_one(Suggestions)
        await until(pilot, lambda: offered.display and offered.option_count == 1)
        await pilot.press("enter")
        assert front(app).composer.text == "Read @notes/plan.md "
        await pilot.press("enter")
        await answered(pilot)
        assert front(app).path[0].attachments == (Attachment("notes/plan.md", "The plan."),)
        said = front(app).transcript.bubbles[0].query_one(".said", Static)
        assert str(said.content).endswith("\n+ notes/plan.md (1 line)")


@pytest.mark.asyncio
async def test_the_input_is_seen_beneath_the_list_in_40_columns_and_12_lines(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(size=(40, 12)) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None)
        await pilot.press("/")
        pane = front(app)
        await until(pilot, lambda: pane.suggestions.display and pane.query_one(Suggestions).region.height)
        assert pane.composer.region.bottom <= pane.region.bottom
        assert pane.composer.region.height == 3


def test_mentions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b c.txt").write_text("BC")
    found = attached('see @a.txt, and @"b c.txt" (mail me@x.org or @nobody)', tmp_path)
    assert found == (Attachment("a.txt", "A"), Attachment("b c.txt", "BC"))


def test_files_that_cannot_be_attached(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        attached("@binary", tmp_path)
    (tmp_path / "large").write_bytes(b"a" * (LARGEST + 1))
    with pytest.raises(UsageError, match="can be attached"):
        attached("@large", tmp_path)


def test_matching_prefers_names_and_shallow_files(tmp_path: Path) -> None:
    for name in ("readme.md", "src/reader.py", "src/deep/nested/arena.txt", ".hidden/readme", "build/readme"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    known = files(tmp_path)
    assert known[0] == "readme.md"
    assert matching(known, "rea") == ["readme.md", "src/reader.py", "src/deep/nested/arena.txt"]
    assert matching(known, "aren") == ["src/deep/nested/arena.txt"]
    assert matching(known, f"{tmp_path}/sr") == [f"{tmp_path}/src/"]
    assert matching(known, "zzz") == []


def test_folders_are_offered_and_what_git_ignores_is_not(tmp_path: Path) -> None:
    for name in ("src/main.py", "src/deep/run.log", "made/a.py", ".git/HEAD", "build.py", "target"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("*.log\nmade/\n/secret\n")
    (tmp_path / "secret").write_text("x")
    assert files(tmp_path) == ["build.py", "src/", "target", "src/deep/", "src/main.py"]
    assert matching(files(tmp_path), "src") == ["src/", "src/deep/", "src/main.py"]
    assert matching([], f"{tmp_path}/") == [f"{tmp_path}/{name}" for name in ("build.py", "src/", "target")]
    assert matching([], f"{tmp_path}/src/deep/") == [], "rules of the repository around it hold"
    assert files(tmp_path / "made") == ["a.py"], "the folder was named itself"


@pytest.mark.asyncio
async def test_a_folder_is_taken_from_the_list_and_what_is_in_it_follows(make_app: MakeApp) -> None:
    Path("my plans").mkdir()
    Path("notes").mkdir()
    Path("notes/plan.md").write_text("The plan.")
    app = make_app("ok")
    async with app.run_test() as pilot:
        await pilot.press(*"Read @not")
        offered = front(app).query_one(Suggestions)
        await until(pilot, lambda: offered.display and offered.option_count == 2)
        await pilot.press("enter")
        assert front(app).composer.text == "Read @notes/"
        await until(
            pilot, lambda: offered.display and str(offered.get_option_at_index(1).prompt).startswith("@notes/p")
        )
        await pilot.press("down", "enter")
        assert front(app).composer.text == "Read @notes/plan.md "
        await pilot.press(*"@my")
        await until(pilot, lambda: offered.display and offered.option_count == 1)
        await pilot.press("enter")
        assert front(app).composer.text == 'Read @notes/plan.md @"my plans/" ', "a blank would end its name"
