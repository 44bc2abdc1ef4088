"""What a full disk kept in memory is in the file once there is room, beside what other processes wrote meanwhile."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Attachment, Preset
from localspec.engine.slot import PassRecord
from tests.chat.conftest import say, texts, without_privileges

FULL = sqlite3.OperationalError("database or disk is full")


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """Files of this process may not grow above so many bytes, as on a full disk."""
    if sys.platform == "win32":
        pytest.skip("no limits of processes")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def sound(file: Path) -> None:
    """The file is whole, and so is its index of words."""
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.execute("INSERT INTO message_words (message_words, rank) VALUES ('integrity-check', 1)")


def everything(archive: Archive) -> tuple[object, ...]:
    """All that an archive knows."""
    messages = [message for chat in archive.chats() for message in archive.tree(chat.id)]
    replays = [archive.replay(message.id) for message in messages]
    return archive.chats(), messages, replays, archive.presets(), archive.prompts(), archive.deletions()


def test_all_that_a_full_disk_kept_in_memory_is_saved_once_there_is_room(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as archive:
        first = archive.new_chat()
        say(archive, first.id, "before", "kept")
        archive.append_user(first.id, "asked before the disk was full")
        archive.save_preset(Preset("old", "a"))
        with no_room(200_000):
            writer = archive.begin_answer(archive.path(first.id)[-1].id, piece=lambda token: b"piece")
            writer.extend("long " * 60_000, record=PassRecord("draft", (3, 4), (-1, 0), (0,), 9, 3, 0.25))
            writer.flush()
            assert not archive.persistent
            assert not archive.save_back(), "there is no room yet"
            assert "cannot be written" in archive.notice
            second = archive.new_chat(title="made in memory")
            archive.append_user(second.id, "zebra", attachments=[Attachment("a.txt", "text")])
            archive.set_tags(second.id, ["one", "two"])
            archive.set_tags(first.id, ["three"])
            archive.save_preset(Preset("new", "b"))
            archive.delete_preset("old")
            archive.delete_message(say(archive, second.id, "gone", "too").id)
            archive.erase(archive.delete_chat(archive.new_chat().id).id)
        assert archive.save_back()
        assert (archive.persistent, archive.notice) == (True, "")
        writer.extend(" and its end")
        writer.finish()
        known = everything(archive)
    with Archive.open(file) as archive:
        assert everything(archive) == known
        assert [chat.id for chat in archive.chats() if archive.path(chat.id)] == [first.id, second.id]
        assert archive.path(first.id)[-1].content == "long " * 60_000 + " and its end"
        assert len(archive.replay(writer.message_id).passes) == 1
        assert [hit.chat_id for hit in archive.search("zebra") if hit.message_id] == [second.id]
    sound(file)


def test_leaving_saves_what_can_be_saved_by_then(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as archive, no_room(150_000):
        chat = archive.new_chat()
        say(archive, chat.id, "question", "x" * 200_000)
        assert not archive.persistent
    with no_room(150_000), Archive.open(file) as archive:  # there was room when it was left, and now there is none
        assert [len(text) for text in texts(archive.path(chat.id))] == [8, 200_000]
        say(archive, chat.id, "another", "y" * 200_000)
        assert not archive.persistent
    with Archive.open(file) as archive:
        assert [len(text) for text in texts(archive.path(chat.id))][:2] == [8, 200_000]
        assert not any("y" in text for text in texts(archive.path(chat.id)))
    sound(file)


def test_what_another_process_wrote_meanwhile_stays(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as one, Archive.open(file) as two, Archive.open(file) as three:
        shared = one.new_chat()
        say(one, shared.id, "shared", "chat")
        for archive in (one, two):
            archive._give_up(FULL)
        mine, yours, theirs = one.new_chat(), two.new_chat(), three.new_chat()
        for archive, chat, word in ((one, mine, "one"), (two, yours, "two"), (three, theirs, "three")):
            say(archive, chat.id, word, f"answer {word}")
            say(archive, shared.id, f"in the shared chat, {word}", "yes")
        assert one.save_back()
        assert two.save_back()
        for archive in (one, two, three):
            for chat, word in ((mine, "one"), (yours, "two"), (theirs, "three")):
                assert texts(archive.path(chat.id)) == [word, f"answer {word}"]
            said = [message.content for message in archive.tree(shared.id)]
            assert sorted(said[2::2]) == [f"in the shared chat, {word}" for word in ("one", "three", "two")]
            assert {"one", "two", "three"} <= set(archive.prompts())
    sound(file)


def test_an_id_that_means_something_else_by_now_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chats.sqlite3"
    monkeypatch.setattr("localspec.chat.archive.file._GAP", 0)
    monkeypatch.setattr("localspec.chat.archive.file._GAPS", 1)
    with Archive.open(file) as one, Archive.open(file) as two:
        one._give_up(FULL)
        mine, yours = one.new_chat(), two.new_chat()
        assert mine.id == yours.id
        say(one, mine.id, "mine", "a")
        say(two, yours.id, "yours", "b")
        assert not one.save_back()
        assert texts(one.path(mine.id)) == ["mine", "a"]
        assert texts(two.path(yours.id)) == ["yours", "b"]
    with Archive.open(file) as archive:
        assert texts(archive.path(yours.id)) == ["yours", "b"]


def test_what_another_process_erased_meanwhile_stays_erased(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as one, Archive.open(file) as two:
        shared, other = one.new_chat(), one.new_chat()
        for chat in (shared, other):
            say(one, chat.id, "before", "kept")
        one._give_up(FULL)
        for chat in (shared, other):
            say(one, chat.id, "after", "in memory")
        two.erase(two.delete_chat(shared.id).id)
        assert one.save_back()
        for archive in (one, two):
            assert [chat.id for chat in archive.chats()] == [other.id]
            assert texts(archive.path(other.id)) == ["before", "kept", "after", "in memory"]
    sound(file)


def test_a_new_file_of_another_process_keeps_its_chats(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as one:
        mine = one.new_chat(title="mine")
        one._give_up(FULL)
        one.update_chat(mine.id, title="mine still")
        for path in tmp_path.iterdir():
            path.unlink()
        with Archive.open(file) as two:
            say(two, two.new_chat(title="theirs").id, "a", "b")
            assert not one.save_back()
            assert [chat.title for chat in two.chats()] == ["theirs"]


def test_a_file_that_is_gone_is_made_anew_with_all_there_is(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "chats.sqlite3"
    with Archive.open(file) as archive:
        chat = archive.new_chat()
        for text in ("b", "a"):
            say(archive, chat.id, text, text)
        archive._give_up(FULL)
        say(archive, chat.id, "c", "c")
        for path in file.parent.iterdir():
            path.unlink()
        file.parent.rmdir()
        with no_room(1000):
            assert not archive.save_back()
        assert archive.save_back()
        known = everything(archive)
        assert archive.prompts() == ["c", "a", "b"]
    with Archive.open(file) as archive:
        assert everything(archive) == known
    sound(file)


def test_a_folder_that_could_not_be_written_at_the_start(open_folder: Path) -> None:
    file = open_folder / "chats.sqlite3"
    with Archive.open(file) as archive:
        chat = archive.new_chat()
        say(archive, chat.id, "before", "kept")
    file.chmod(0o444)
    open_folder.chmod(0o555)
    with without_privileges():
        archive = Archive.open(file)
        assert not archive.persistent
        say(archive, chat.id, "after", "in memory")
        assert not archive.save_back()
    open_folder.chmod(0o777)
    file.chmod(0o666)
    assert archive.save_back()
    archive.close()
    with Archive.open(file) as archive:
        assert texts(archive.path(chat.id)) == ["before", "kept", "after", "in memory"]
    sound(file)


def test_a_file_of_another_program_is_never_written(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = file.read_bytes()
    with Archive.open(file) as archive:
        say(archive, archive.new_chat().id, "a", "b")
        assert not archive.save_back()
    assert file.read_bytes() == before
