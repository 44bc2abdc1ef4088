"""What is typed where a path may stand, and can be no path: a word, or one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from localspec.cli import main
from localspec.errors import LocalspecError
from localspec.models.installed import installed
from localspec.models.installed.installed import find
from localspec.models.installed.store import Store
from localspec.paths import typed
from localspec.tui.screens.pull import ImportScreen, completed, dropped
from localspec.tui.talk import files
from tests.tui.conftest import MakeApp, front, say, until

NO_FILES = {
    "an unknown user": "~500",
    "a file of an unknown user": "~nobody_x/a",
    "a long name": "media(print){" + "a{b:c}" * 60 + "}",
    "a file in a folder of a long name": "d" * 300 + "/a",
    "a long path": "a/" * 3000,
    "a zero": "a\0b",
}
ROOT = os.name == "posix" and os.geteuid() == 0
"""Whom no folder is closed to."""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[str]:
    """A file in a folder that may not be entered."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "a").write_text("secret")
    folder.chmod(0)
    yield f"{folder}/a"
    folder.chmod(0o700)


@pytest.mark.asyncio
@pytest.mark.parametrize("word", NO_FILES.values(), ids=NO_FILES)
async def test_after_an_at_it_is_only_a_word(make_app: MakeApp, word: str) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        text = f"we have @{word} of them now"
        front(app).composer.put(f"@{word}")  # suggestions are looked for
        await until(pilot, lambda: not any(worker.group == "files" for worker in app.workers))
        await say(pilot, text)
        assert front(app).path[0].content == text
        assert front(app).path[0].attachments == ()
        assert not app._notifications


@pytest.mark.asyncio
@pytest.mark.parametrize("word", NO_FILES.values(), ids=NO_FILES)
async def test_commands_say_what_is_wrong(make_app: MakeApp, word: str) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        await say(pilot, "Hello")
        for command, fault in (
            (f"/export {word}/a.md", "cannot be written"),
            (f"/import {word}.json", "Cannot read"),
            (f"/model {word}", ""),
        ):
            app.clear_notifications()
            await app.chat_screen.command(*command[1:].split(" ", 1))
            await until(pilot, lambda: app._notifications)
            [note] = app._notifications
            assert note.severity == "warning"
            assert fault in note.message


@pytest.mark.asyncio
@pytest.mark.parametrize("word", NO_FILES.values(), ids=NO_FILES)
async def test_the_import_of_a_model_says_what_is_wrong(make_app: MakeApp, tmp_path: Path, word: str) -> None:
    app = make_app("ok")
    async with app.run_test() as pilot:
        screen = ImportScreen(Store(tmp_path / "models"))
        await app.push_screen(screen)
        screen.query_one("#file", Input).value = word
        screen.action_take()
        note = screen.query_one("#note", Static)
        await until(pilot, lambda: note.has_class("bad"))
        await until(pilot, lambda: not any(worker.group == "suggest" for worker in app.workers))


@pytest.mark.parametrize("word", NO_FILES.values(), ids=NO_FILES)
def test_a_line_for_a_path_takes_it_as_it_is(word: str) -> None:
    assert dropped(word) == word
    assert completed(word, ".gguf") is None
    assert dropped(f"file:///{word}") == f"/{word}"
    assert dropped("file://[::1/a%20b") == "/a b"


@pytest.mark.parametrize("word", NO_FILES.values(), ids=NO_FILES)
def test_it_names_no_model(folders: Path, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for use in (find, installed.choose):
        with pytest.raises(LocalspecError):
            use(word)
    for command in ([word], ["run", "--target", word, "x"], ["show", word]):
        assert main(command) in (2, 3)
        assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("word", NO_FILES.values(), ids=NO_FILES)
def test_it_names_no_file_of_a_command(folders: Path, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["import", word], ["chats", "import", word], ["chats", "export", "-o", f"{word}/x"]):
        assert main(command) in (1, 2, 3)
        assert "internal error" not in capsys.readouterr().err
    assert main(["corpus", "add", "--target", "bundled", word]) in (1, 2, 3)
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.skipif(ROOT, reason="the superuser may enter every folder")
def test_a_file_in_a_closed_folder_is_no_file(folders: Path, closed: str) -> None:
    assert files.attached(f"see @{closed} there") == ()
    assert files.folders(f"see @{closed} there") == []
    assert files.matching([], closed) == []
    assert completed(closed, ".gguf") is None
    assert dropped(closed) == closed
    with pytest.raises(LocalspecError):
        installed.choose(closed)


def test_links_that_lead_nowhere_are_offered_with_the_rest(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    assert files.matching([], f"{tmp_path}/") == [f"{tmp_path}/folder/", f"{tmp_path}/loop"]
    assert completed(f"{tmp_path}/f", ".gguf") == f"{tmp_path}/folder/"


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert typed("~/a") == tmp_path / "a"
    assert typed("~nobody_x/a") == Path("~nobody_x/a")
