"""Chats that 0.1 wrote open after an upgrade; what this version adds to them, 0.1 opens after a downgrade.

tests/data/saved-0.1/chats.sqlite3.gz was written by 0.1 itself (commit bf47e49).
"""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Attachment
from localspec.chat.prompt.prompt import prompt_messages, sampling_params
from localspec.tui.text.origin_lines import read_passes
from tests.chat.conftest import say, texts

RECORDED = Path(__file__).parents[1] / "data" / "saved-0.1" / "chats.sqlite3.gz"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the recorded archive."""
    path = tmp_path / "chats.sqlite3"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return path


def form(file: Path) -> list[tuple[object, ...]]:
    """What decides whether a version opens an archive: its numbers, and every table, index and trigger."""
    with closing(sqlite3.connect(file)) as connection:
        names = ("application_id", "user_version")
        numbers = [(name, *connection.execute(f"PRAGMA {name}").fetchone()) for name in names]
        return numbers + sorted(connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall())


def test_chats_of_0_1_open_with_all_that_belongs_to_them(file: Path) -> None:
    with Archive.open(file) as archive:
        assert (archive.notice, archive.persistent) == ("", True)
        towns, long = archive.chats()
        assert (towns.title, towns.system, towns.model, towns.pinned) == ("Towns", "Be brief.", "tiny", True)
        assert (set(towns.tags), towns.unsent) == ({"travel", "swiss"}, "And Basel?")
        assert sampling_params(towns.params).temperature == 0.5
        question, second = archive.path(towns.id)
        assert (question.content, question.attachments) == (
            "Where is Zürich?",
            (Attachment("map.txt", "north of the Alps\n"),),
        )
        assert (second.content, second.state, question.sibling_number, len(question.siblings)) == (
            "In Switzerland.",
            "stopped",
            1,
            2,
        )
        first = archive.message(second.siblings[0])
        assert (first.content, first.reasoning, first.seed) == ("Zürich lies.", "A city.", 2**64 - 1)
        assert (first.sampling["top_k"], first.stats["tokens"]) == (3, 4)
        replay = archive.replay(first.id)
        passes = read_passes(replay.passes, lambda token: replay.pieces.get(token, b""))
        shown = [(token.text, token.drafter) for one in passes for token in one.emitted]
        assert shown == [("Zü", "lookup"), ("rich", "lookup"), (" lies", ""), (".", "")]
        assert [hit.message_id for hit in archive.search("zurich lies")] == [first.id]
        assert "They talked long." in prompt_messages(long, archive.path(long.id))[0].content
        assert [(preset.name, preset.params) for preset in archive.presets()] == [("terse", {"temperature": 0.0})]
        assert len(archive.deletions()) == 1


def test_what_is_written_into_it_now_0_1_can_open(file: Path, tmp_path: Path) -> None:
    """A table that 0.1 does not know is none of its business; it erases rows of it with their message."""
    before = form(file)
    with Archive.open(file) as archive:
        chat_id = archive.chats()[0].id
        say(archive, chat_id, "And Basel?", "On the Rhine.")
    added = [row for row in form(file) if row not in before]
    assert set(before) <= set(form(file))
    assert {(row[0], row[1]) for row in added} == {("table", "call"), ("index", "sqlite_autoindex_call_1")}
    with Archive.open(file) as archive:
        assert texts(archive.path(chat_id))[-2:] == ["And Basel?", "On the Rhine."]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]  # nothing had to be migrated or set aside
