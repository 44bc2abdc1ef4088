"""`localspec chats`: what is on disk, from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from localspec.chat.archive.archive import Archive
from localspec.runtime.kept.caches import CacheFolder
from localspec.runtime.kept.corpus import CorpusFile, Sequence, folder, name_of
from localspec.types import NO_TOKENS
from tests.cli.conftest import Command
from tests.conftest import fill


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))


@pytest.fixture
def two_chats() -> None:
    with Archive.open() as archive:
        for title, text in (("Houses", "The red house."), ("Boats", "A \x1b[31mred boat.")):
            chat = archive.new_chat(title=title)
            writer = archive.begin_answer(archive.append_user(chat.id, f"about {title}").id)
            writer.extend(text)
            writer.finish()
        archive.update_chat(1, pinned=True)
        archive.set_tags(2, ["sea"])


def test_nothing_there_yet(command: Command) -> None:
    assert "no chats yet" in command("chats", "list").out
    assert "Nothing was found" in command("chats", "search", "x").out
    assert "Nothing was removed" in command("chats", "undo").out
    assert command("chats", "show").code == 2
    assert command("chats").code == 2
    assert json.loads(command("chats", "list", "--json").out) == []


@pytest.mark.usefixtures("two_chats")
def test_list_and_search(command: Command) -> None:
    first, second = command("chats", "list").out.splitlines()
    assert first.startswith("    1* ")
    assert first.endswith("Houses")
    assert second.endswith("Boats  [sea]")
    assert [chat["title"] for chat in json.loads(command("chats", "list", "--json", "--tag", "sea").out)] == ["Boats"]
    assert len(command("chats", "list", "--limit", "1").out.splitlines()) == 1
    found = command("chats", "search", "red", "hou").out
    assert "1  Houses" in found
    assert "assistant: The red house." in found
    assert "Houses" not in command("chats", "search", "red boat").out
    (hit,) = json.loads(command("chats", "search", "--json", "red").out)
    assert (hit["chat_id"], hit["role"]) == (1, "assistant")


@pytest.mark.usefixtures("two_chats")
def test_show_and_export(command: Command, tmp_path: Path) -> None:
    assert "A \x1b[31mred boat." in command("chats", "show").out  # a pipe gets every byte
    assert "The red house." in command("chats", "show", "1").out
    file = tmp_path / "chats.html"
    assert command("chats", "export", "1", "-o", str(file)).code == 0
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    whole = command("chats", "export").out
    (tmp_path / "all.json").write_text(whole, encoding="utf-8")
    assert "2 chats already there" in command("chats", "import", str(tmp_path / "all.json")).out
    assert command("chats", "export", "-o", str(tmp_path / "no" / "x.md")).code == 1


@pytest.mark.usefixtures("two_chats")
def test_rm_deletes_the_saved_cache_and_the_answers_in_the_corpus(command: Command) -> None:
    with Archive.open() as archive:
        keys = [archive.chat(number).key for number in (1, 2)]
    kept, gone = map(CacheFolder().path, keys)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(b"")
    gone.write_bytes(b"")
    answers = CorpusFile(folder() / "one.sqlite", 10**6)
    answers.write(Sequence(name_of(NO_TOKENS, key), np.arange(9, dtype=np.int32), 1.0) for key in keys)
    assert command("chats", "rm", "2").code == 0
    assert [kept.exists(), gone.exists()] == [True, False]
    assert [one.name for one in answers.read()] == [name_of(NO_TOKENS, keys[0])]
    answers.close()


@pytest.mark.usefixtures("two_chats")
def test_rm_removes_chats_whose_answers_stay_in_the_corpus_and_says_so(command: Command) -> None:
    (folder() / "one.sqlite").mkdir(parents=True)  # where a file should be
    removed = command("chats", "rm", "1", "2")
    assert (removed.code, removed.out.count("Removed chat")) == (1, 2)
    assert "cannot be taken out of the corpus" in removed.err
    assert "no chats yet" in command("chats", "list").out


@pytest.mark.usefixtures("two_chats")
def test_rm_undo_and_import(command: Command, tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(command("chats", "export").out, encoding="utf-8")
    assert command("chats", "rm", "1", "7").code == 2  # nothing is removed
    removed = command("chats", "rm", "1", "last")
    assert 'chat 1 "Houses". `localspec chats undo 1` brings it back' in removed.out
    assert len(command("chats", "undo").out.splitlines()) == 2
    assert command("chats", "undo", "1").code == 0
    assert command("chats", "undo", "1").code == 2
    assert command("chats", "rm", "--now", "1").out == 'Erased chat 1 "Houses".\n'
    assert command("chats", "undo", "2").code == 0
    assert (
        "1 chat and 2 messages imported; 1 chat already there."
        in command("chats", "import", str(tmp_path / "all.json")).out
    )


@pytest.mark.usefixtures("two_chats")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "one"), "must be a number"),
        (("show", "99999999999999999999"), "no chat 99999999999999999999"),
        (("list", "--limit", "0"), "--limit is 0"),
        (("search", "x", "--limit", "-1"), "--limit is -1"),
        (("import", "nowhere.json"), "Cannot read nowhere.json"),
    ],
)
def test_mistakes(command: Command, arguments: tuple[str, ...], sentence: str) -> None:
    result = command("chats", *arguments)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


def test_an_archive_that_cannot_be_used(command: Command, tmp_path: Path) -> None:
    (tmp_path / "data" / "chats.sqlite3").mkdir(parents=True)
    for arguments in (("list",), ("import", "x"), ("rm", "1")):
        result = command("chats", *arguments)
        assert result.code == 1
        assert "cannot be written" in result.err


@pytest.mark.usefixtures("two_chats")
def test_a_terminal_is_shown_no_escapes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "A red boat." in command("chats", "show", "2").out


def test_chats_are_removed_from_a_full_disk(
    command: Command, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat's cache goes first: it is the room for the rest. Without one there is none, and that is said."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(small_disk / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(small_disk / "cache"))
    with Archive.open() as archive:
        archive.append_user(archive.new_chat(title="Houses").id, "Hello")
        cached = archive.new_chat(title="Boats")
        archive.append_user(cached.id, "Hello")
    caches = CacheFolder()
    caches.directory.mkdir(parents=True)
    caches.path(cached.key).write_bytes(b"x" * 1_000_000)
    fill(small_disk)
    refused = command("chats", "rm", "1")
    assert refused.code == 1
    assert "cannot be written" in refused.err
    assert refused.out == ""
    assert "Removed chat 2" in command("chats", "rm", "2").out
    (small_disk / "ballast").unlink()
    assert [line.split()[-1] for line in command("chats", "list").out.splitlines()] == ["Houses"]
