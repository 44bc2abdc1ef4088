"""Files that are old, new, foreign, damaged, full or read-only: said in a sentence, nothing lost, the chat goes on."""

from __future__ import annotations

import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.archive import file as archive_file
from localspec.chat.archive.archive import Archive
from localspec.chat.archive.file import ArchiveFile
from localspec.errors import LocalspecError
from tests.chat.conftest import say, texts, without_privileges


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def works(archive: Archive) -> bool:
    """Whether a chat can be held."""
    chat = archive.new_chat()
    say(archive, chat.id, "ping", "pong")
    return texts(archive.path(chat.id)) == ["ping", "pong"] and len(archive.search("pong")) >= 1


def made(file: Path) -> int:
    """An archive with one chat; its id."""
    with Archive.open(file) as archive:
        chat = archive.new_chat(title="old chat")
        say(archive, chat.id, "before", "kept")
        return chat.id


def test_the_file_and_its_folder_are_the_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "chats.sqlite3"
    with Archive.open(file) as archive:
        assert works(archive)
        for path in file.parent.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.stat().st_size == 0, path
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    Archive.open(file).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_older_file_is_copied_then_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chats.sqlite3"
    chat_id = made(file)
    step = "ALTER TABLE chat ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\nCREATE TABLE more (x);\n"
    monkeypatch.setattr(archive_file, "MIGRATIONS", [*archive_file.MIGRATIONS, step])
    with Archive.open(file) as archive:
        assert (archive.notice, archive.persistent) == ("", True)
        assert texts(archive.path(chat_id)) == ["before", "kept"]
        assert works(archive)
    (backup,) = tmp_path.glob("chats.sqlite3.version-1-*")
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with closing(sqlite3.connect(file)) as new, closing(sqlite3.connect(backup)) as old:
        assert new.execute("PRAGMA user_version").fetchone() == (2,)
        assert new.execute("SELECT DISTINCT colour FROM chat").fetchall() == [("red",)]
        assert old.execute("PRAGMA user_version").fetchone() == (1,)
        assert old.execute("SELECT title FROM chat").fetchall() == [("old chat",)]


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chats.sqlite3"
    chat_id = made(file)
    with monkeypatch.context() as patch:
        broken = [*archive_file.MIGRATIONS, "CREATE TABLE half (x);\nCREATE UNIQUE INDEX one ON message(chat);\n"]
        patch.setattr("localspec.chat.archive.file.MIGRATIONS", broken)
        with Archive.open(file) as archive:
            assert "UNIQUE constraint failed" in archive.notice
            assert not archive.persistent
    with Archive.open(file) as archive:
        assert (archive.notice, texts(archive.path(chat_id))) == ("", ["before", "kept"])


def test_an_empty_file_of_version_0_becomes_an_archive(tmp_path: Path) -> None:
    (tmp_path / "chats.sqlite3").touch()
    with Archive.open(tmp_path / "chats.sqlite3") as archive:
        assert archive.persistent
        assert works(archive)
    assert names(tmp_path) == ["chats.sqlite3"]  # nothing was worth a copy


@pytest.mark.parametrize("which", ["newer", "foreign"])
def test_files_that_are_not_ours_to_write_are_left_alone(tmp_path: Path, which: str) -> None:
    file = tmp_path / "chats.sqlite3"
    made(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA user_version = 99" if which == "newer" else "PRAGMA application_id = 5")
    before = file.read_bytes()
    with Archive.open(file) as archive:
        assert not archive.persistent
        assert {"newer": "newer localspec (version 99", "foreign": "another program"}[which] in archive.notice
        assert archive.chats() == []
        assert works(archive)
    assert file.read_bytes() == before
    assert names(tmp_path) == ["chats.sqlite3"]


@pytest.mark.parametrize("damage", ["text", "header", "pages"])
def test_a_damaged_file_is_set_aside_and_the_chat_goes_on(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "chats.sqlite3"
    made(file)
    data = file.read_bytes()
    spoiled = {"text": b"Dear diary, " * 500, "header": b"\xff" * 16 + data[16:], "pages": data[:100] + b"\x55" * 8000}
    file.write_bytes(spoiled[damage])
    with Archive.open(file) as archive:
        assert "damaged" in archive.notice
        assert works(archive)
    (aside,) = tmp_path.glob("chats.sqlite3.damaged-*")
    assert aside.read_bytes() == spoiled[damage]
    with Archive.open(file) as archive:
        assert (archive.notice, len(archive.chats())) == ("", 1)


def test_damage_that_shows_later(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    made(file)
    with closing(sqlite3.connect(file)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'prompt'").fetchone()
    data = bytearray(file.read_bytes())
    data[(page - 1) * 4096 : page * 4096] = b"\x55" * 4096
    file.write_bytes(data)
    with Archive.open(file) as archive:
        assert works(archive)
        assert not archive.persistent
        assert "damaged file is kept as" in archive.notice
        assert texts(archive.path(1)) == ["before", "kept"]  # what could be read is still there
    assert len(list(tmp_path.glob("chats.sqlite3.damaged-*"))) == 1


def test_a_full_disk_is_said_once_and_the_chat_goes_on_in_memory(tmp_path: Path) -> None:
    heard: list[str] = []
    with Archive.open(tmp_path / "chats.sqlite3") as archive:
        archive.on_notice = heard.append
        chat = archive.new_chat()
        writer = archive.begin_answer(archive.append_user(chat.id, "before").id)
        pages = archive._connection.execute("PRAGMA page_count").fetchone()[0]
        archive._connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        for _ in range(4):
            writer.extend("x" * 20_000)
            writer.flush()
        assert writer.finish().content == "x" * 80_000
        say(archive, chat.id, "after", "y" * 50_000)
        assert [len(text) for text in texts(archive.path(chat.id))] == [6, 80_000, 5, 50_000]
        assert len(heard) == 1
        assert "disk is full" in archive.notice == heard[0]
        assert not archive.persistent
        assert works(archive)
        with Archive.open(tmp_path / "chats.sqlite3") as other:  # what was written before is still there
            assert other.chats()[0].title == "before"


def test_a_read_only_folder(open_folder: Path) -> None:
    file = open_folder / "chats.sqlite3"
    chat_id = made(file)
    file.chmod(0o444)
    open_folder.chmod(0o555)
    with without_privileges(), Archive.open(file) as archive:
        assert not archive.persistent
        assert "cannot be written" in archive.notice
        assert texts(archive.path(chat_id)) == ["before", "kept"]  # old chats can be read
        assert works(archive)
    with without_privileges(), Archive.open(open_folder / "other" / "chats.sqlite3") as archive:
        assert "cannot be written (Permission denied)" in archive.notice
        assert works(archive)
    open_folder.chmod(0o777)
    assert names(open_folder) == ["chats.sqlite3"]


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    with Archive.open(tmp_path) as archive:
        assert "cannot be written" in archive.notice
        assert works(archive)


def test_a_file_that_stays_busy_is_an_error_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.chat.archive.file._BUSY_SECONDS", 0.1)
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as archive:
        writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "x").id)
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LocalspecError, match="in use by another program"):
                archive.new_chat()
            writer.extend("held")
            with pytest.raises(LocalspecError, match="in use"):
                writer.flush()
        assert writer.finish().content == "held"
        assert archive.persistent


def test_many_threads(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "chats.sqlite3") as archive:

        def hold(number: int) -> int:
            chat = archive.new_chat()
            for turn in range(5):
                say(archive, chat.id, f"q{number}", f"a{turn} common")
                archive.search("common")
            return len(archive.path(chat.id))

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(hold, range(6))) == [10] * 6
        assert len(archive.search("common", limit=100)) == 30


def test_the_log_is_worked_into_the_file(tmp_path: Path) -> None:
    file = ArchiveFile(tmp_path / "x.sqlite3")
    file._connection.execute("CREATE TABLE big (x)")
    before = (tmp_path / "x.sqlite3").stat().st_size
    file._connection.execute("INSERT INTO big VALUES (zeroblob(5000000))")
    assert (tmp_path / "x.sqlite3").stat().st_size == before
    file.checkpoint()
    assert (tmp_path / "x.sqlite3").stat().st_size > before + 5_000_000
    file.close()
