"""Past answers that last: what is searched, what is kept, and what becomes of it when things go wrong."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.errors import LocalspecError
from localspec.native.indexes import ContextCounts
from localspec.runtime.engine import Engine
from localspec.runtime.kept.corpus import Corpus, CorpusFile, Sequence, erase, folder, mark_of, name_of
from localspec.types import Noise, SamplingParams, Tokens
from tests.native.inside import tokens_held
from tests.runtime.corpus_texts import LONG, entry, guess, knows, text

BUDGET = 10_000_000
SMALL = 400_000
"""Bytes: room for some 20 long texts."""


def tokens_of(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CorpusFile]:
    with closing(CorpusFile(tmp_path / "corpus" / "one.sqlite", BUDGET)) as file:
        yield file


def kept(file: CorpusFile) -> list[list[int]]:
    return [one.tokens.tolist() for one in file.read()]


def names(file: CorpusFile) -> set[bytes]:
    return {one.name for one in file.read()}


def opened(file: CorpusFile) -> Corpus:
    corpus = Corpus(CorpusFile(file.path, file.budget), 30_000)
    corpus.settle()
    return corpus


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_answers_last(file: CorpusFile) -> None:
    corpus = opened(file)
    for number in range(3):
        corpus.keep(text(number))
    corpus.keep(tokens_of(1, 2, 3))  # too short
    corpus.settle()
    assert all(knows(corpus, text(number)) for number in range(3))
    corpus.close()
    corpus.close()
    again = opened(file)
    assert all(knows(again, text(number)) for number in range(3))
    assert not knows(again, text(3))
    again.close()
    assert kept(file) == [text(number).tolist() for number in range(3)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in file.path.parent.iterdir()] == [0o600]
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_the_same_answer_is_kept_once_and_counts_as_used(file: CorpusFile) -> None:
    corpus = opened(file)
    for number in (0, 1, 0):
        corpus.keep(text(number))
    corpus.close()
    assert kept(file) == [text(1).tolist(), text(0).tolist()]


def habit(corpus: Corpus, tokens: Tokens) -> list[int]:
    """What the counts say after some tokens."""
    borrowed = corpus.borrow()
    assert borrowed is not None
    found: list[int] = ContextCounts().guess(tokens, 0, 0.0, Noise(1), 1, 1, 1, borrowed[1]).tokens.tolist()
    corpus.give_back()
    return found


def test_habits_are_this_models_answers_and_end_with_their_chat(file: CorpusFile) -> None:
    file.write([replace(entry(0), model="this.gguf"), replace(entry(1), model="other.gguf"), entry(2)])
    corpus = Corpus(file, 32_000, "this.gguf")
    corpus.keep(text(3), "a chat")
    corpus.settle()
    for number, counts in ((0, True), (1, False), (2, False), (3, True)):
        assert habit(corpus, text(number)[:2]) == ([int(text(number)[2])] if counts else []), number
        assert knows(corpus, text(number)), "copies of every text are found"
    corpus.forget("a chat")
    corpus.settle()
    assert habit(corpus, text(3)[:2]) == []
    assert habit(corpus, text(0)[:2]) == [int(text(0)[2])]
    corpus.close()


def test_what_is_of_least_use_makes_room(file: CorpusFile) -> None:
    small = CorpusFile(file.path, SMALL)
    corpus = opened(small)
    for number in range(19):
        corpus.keep(text(number, LONG))
    corpus.settle()
    found = guess(corpus, text(2, LONG)[:-8])
    corpus.used(found.sequence)
    for number in range(19, 30):
        corpus.keep(text(number, LONG))
    corpus.settle()
    assert knows(corpus, text(2, LONG))
    assert knows(corpus, text(29, LONG))
    assert not knows(corpus, text(0, LONG))
    corpus.close()
    assert small.size <= small.budget
    left = names(file)
    assert entry(2, 0, LONG).name in left
    assert entry(29, 0, LONG).name in left
    assert entry(0, 0, LONG).name not in left


def test_a_smaller_budget_cuts_nothing_that_others_keep(file: CorpusFile) -> None:
    known = [entry(number, float(number), LONG) for number in range(130)]
    file.write(known[:100])
    small = CorpusFile(file.path, SMALL)
    corpus = opened(small)
    assert knows(corpus, known[99].tokens)
    assert not knows(corpus, known[50].tokens), "it reads as much as it may keep"
    for one in known[100:]:
        corpus.keep(one.tokens)
    corpus.close()
    assert names(file) == {one.name for one in known}
    assert 105 <= file.trim(SMALL) <= 110
    assert file.trim(SMALL) == 0
    left = names(file)
    assert left == {one.name for one in known[-len(left) :]}
    assert SMALL * 0.9 < file.size <= SMALL
    for number in range(200, 205):
        small.write([entry(number, time.time(), LONG)])
    assert file.size <= SMALL, "what was agreed before is forgotten"
    small.close()


def test_the_model_that_answered_is_known(file: CorpusFile) -> None:
    corpus = Corpus(CorpusFile(file.path, BUDGET), 30_000, "one.gguf")
    corpus.keep(text(0))
    corpus.close()
    file.write([entry(1, time.time() + 1)])
    assert [one.model for one in file.read()] == ["one.gguf", None]


def bytes_of(tokens: Tokens, folder: Path) -> bool:
    """Whether a part of a text is in any file."""
    found = b"\0".join(path.read_bytes() for path in folder.iterdir())
    data = tokens.tobytes()
    return any(data[at : at + 16] in found for at in range(0, len(data) - 16, 16))


@pytest.mark.parametrize("length", [40, LONG])
def test_what_is_deleted_leaves_the_disk(file: CorpusFile, length: int) -> None:
    folder = file.path.parent
    file.write(Sequence(name_of(text(number), f"chat {number % 3}"), text(number, length), 0.0) for number in range(9))
    assert all(bytes_of(text(number, length), folder) for number in range(9))
    before = file.size
    file.remove("chat 1")
    assert [bytes_of(text(number, length), folder) for number in range(9)] == 3 * [True, False, True]
    assert mark_of("chat 1") not in file.path.read_bytes()
    assert mark_of("chat 2") in file.path.read_bytes()
    assert file.size < before or length < LONG
    file.trim(0)
    assert not any(bytes_of(text(number, length), folder) for number in range(9))


ERASING = """
import sys
from localspec.runtime.kept.corpus import erase
erase(sys.argv[1])
"""


def test_a_process_that_runs_sees_what_another_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    corpus = opened(CorpusFile(folder() / "one.sqlite", BUDGET))
    corpus.step()
    for number, chat in enumerate(("a", "b")):
        corpus.keep(text(number), chat)
    corpus.step()
    corpus.settle()
    subprocess.run([sys.executable, "-c", ERASING, "a"], check=True)
    assert knows(corpus, text(0))
    monkeypatch.setattr("localspec.runtime.kept.corpus._LOOK_SECONDS", 0.0)
    assert corpus.wait == 0.0, "an idle engine does the step"
    assert not corpus.step(), "it goes on"
    corpus.settle()
    assert [knows(corpus, text(number)) for number in range(2)] == [False, True]
    corpus.close()
    assert corpus.wait is None
    assert corpus.step()


def old_record(kind: int, one: Sequence) -> bytes:
    """As localspec wrote them until version 0.2."""
    tokens = one.tokens.tobytes() if kind == 1 else b""
    head = struct.pack("<4sBxxxI16sd", b"\xf5lsC", kind, len(tokens) // 4, one.name, one.used)
    return head + struct.pack("<I", zlib.crc32(tokens, zlib.crc32(head))) + tokens


def test_an_old_file_is_taken_over(file: CorpusFile, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [entry(number, float(number), LONG) for number in range(40)]
    records = [old_record(1, one) for one in kept] + [old_record(2, entry(3, 50.0, LONG))]
    records[5] = records[5][:60] + b"\0\0\0\0" + records[5][64:]
    file.path.parent.mkdir()
    old = file.path.with_suffix(".tokens")
    for suffix in ("", ".lock", ".budget", ".x.tmp"):
        old.with_name(old.name + suffix).write_bytes(b"junk" + b"".join(records) + b"\xf5lsC")
    small = CorpusFile(file.path, SMALL)
    found = small.read()
    order = [*range(3), 4, *range(6, 40), 3]
    assert [one.name for one in found] == [kept[number].name for number in order]
    assert np.array_equal(found[-1].tokens, kept[3].tokens)
    assert {one.model for one in found} == {""}
    assert list(file.path.parent.iterdir()) == [file.path]
    small.write([entry(100, 60.0, LONG)])
    assert len(small.read()) >= 28, "it makes room as any full file does"
    small.close()
    monkeypatch.setattr("localspec.runtime.kept.corpus.folder", lambda: file.path.parent)
    old.write_bytes(old_record(1, Sequence(name_of(text(200), "a"), text(200), 70.0)))
    erase("a")
    assert not bytes_of(text(200), file.path.parent)
    assert list(file.path.parent.iterdir()) == [file.path]


def test_answers_of_a_deleted_chat_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    file, other = (CorpusFile(folder() / f"{name}.sqlite", BUDGET) for name in ("one", "other"))
    other.write([Sequence(name_of(text(0), "a"), text(0), 1.0), entry(5)])
    corpus = opened(file)
    for number, chat in enumerate(("a", "b", "a", None)):
        corpus.keep(text(number), chat)
    corpus.keep(text(0), "b")  # two chats may have the same answer
    corpus.forget("a")
    corpus.settle()
    assert [knows(corpus, text(number)) for number in range(4)] == [True, True, False, True]
    corpus.forget("b")
    corpus.forget("nobody's")
    corpus.settle()
    assert [knows(corpus, text(number)) for number in range(4)] == [False, False, False, True]
    corpus.keep(text(1), "b")
    corpus.close()
    assert kept(file) == [text(3).tolist(), text(1).tolist()]
    assert kept(other) == [text(5).tolist()], "a chat may have been answered by several models"
    erase("b")
    assert kept(file) == [text(3).tolist()]
    other.close()
    other.path.unlink()
    other.path.mkdir()
    with pytest.raises(
        LocalspecError, match=r"cannot be taken out of the corpus.*other\.sqlite cannot be used: unable"
    ):
        erase("b")
    file.close()


def test_answers_that_cannot_leave_are_said_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    (folder() / "broken.sqlite").mkdir(parents=True)
    file = CorpusFile(folder() / "one.sqlite", BUDGET)
    corpus = opened(file)
    for chat in ("a", "b"):
        corpus.keep(text(0), chat)
        corpus.forget(chat)
    corpus.close()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["cannot be taken out of the corpus" in one for one in said] == [True, True]
    assert kept(file) == [], "files that can be written lose them all the same"
    file.close()


def test_tokens_of_another_vocabulary_are_left_out(file: CorpusFile) -> None:
    file.write([entry(0), Sequence(b"x" * 16, tokens_of(*range(1, 40), 30_000), 1.0)])
    corpus = opened(file)
    assert knows(corpus, text(0))
    assert guess(corpus, tokens_of(1, 2, 3)).match == 0
    corpus.close()


def test_while_it_is_worked_on_nobody_waits(file: CorpusFile) -> None:
    corpus = opened(file)
    corpus.keep(text(0))
    corpus.settle()
    with corpus._lock:
        assert not knows(corpus, text(0))
    assert knows(corpus, text(0))
    corpus.close()


# -- what goes wrong -------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    cut=st.none() | st.integers(0, 24_000),
    flips=st.lists(st.integers(0, 24_000), max_size=20),
    garbage=st.binary(max_size=60),
)
@example(cut=None, flips=[], garbage=b"")
@example(cut=0, flips=[], garbage=b"no database")
def test_damage_costs_the_file_at_most(
    tmp_path_factory: pytest.TempPathFactory, cut: int | None, flips: list[int], garbage: bytes
) -> None:
    file = CorpusFile(tmp_path_factory.mktemp("corpus") / "one.sqlite", BUDGET)
    entries = [entry(number, float(number)) for number in range(5)]
    with closing(file):
        file.write(entries)
    data = bytearray(file.path.read_bytes())
    for flip in flips:
        data[flip % len(data)] ^= 0x10
    file.path.write_bytes(bytes(data[:cut]) + garbage)
    corpus = opened(file)
    corpus.keep(text(7))
    corpus.settle()
    assert knows(corpus, text(7)), "answers go on"
    corpus.close()
    with closing(file):
        try:
            there = len(file.read())
        except LocalspecError:
            there = -1
    if cut is None and not flips:
        assert there == 6
    elif there not in (1, 5, 6):
        assert any(flip % len(data) < 4096 for flip in flips), "the first page says how to read the others"


def test_damage_is_said_in_a_sentence_and_set_aside(file: CorpusFile, caplog: pytest.LogCaptureFixture) -> None:
    file.write([entry(number) for number in range(3)])
    file.close()
    with open(file.path, "r+b") as raw:
        raw.write(b"\0" * 60)
    corpus = opened(file)
    assert not knows(corpus, text(0))
    corpus.keep(text(1))
    corpus.settle()
    assert knows(corpus, text(1))
    corpus.close()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    (aside,) = file.path.parent.glob("one.sqlite.damaged-*")
    assert f"one.sqlite was damaged (file is not a database); it is kept as {aside.name} until a chat is" in said
    assert bytes_of(text(0), file.path.parent)
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    caplog.clear()
    opened(file).close()
    assert not caplog.records
    file.remove("a chat")
    assert not aside.exists(), "it may hold what the chat was answered"


def test_damage_while_it_runs_is_said_and_the_next_answer_is_kept(file: CorpusFile) -> None:
    file.write([entry(number, float(number), LONG) for number in range(20)])
    with open(file.path, "r+b") as raw:
        raw.write(b"\0" * file.size)
    with pytest.raises(LocalspecError, match=r"one\.sqlite cannot be used"):
        file.write([entry(30)])
    file.write([entry(31)])
    assert names(file) == {entry(31).name}


def test_rows_of_another_kind_are_left_out(file: CorpusFile) -> None:
    file.write([entry(0)])
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute("INSERT INTO sequence VALUES (x'01', x'010203', 1.0, 'm'), (x'02', 'text', 1.0, 'm')")
        connection.execute("INSERT INTO sequence VALUES ('name', x'01020304', 1.0, 'm'), (x'03', x'', 'then', 'm')")
        connection.commit()
    assert kept(file) == [text(0).tolist()]


def test_a_file_of_a_newer_localspec_is_left_alone(file: CorpusFile) -> None:
    file.write([entry(0)])
    file.close()
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = file.path.read_bytes()
    with pytest.raises(LocalspecError, match="from a newer localspec"):
        file.write([entry(1)])
    assert file.path.read_bytes() == before


WRITER = """
import sys
from pathlib import Path
from localspec.runtime.kept.corpus import CorpusFile
from tests.runtime.corpus_texts import entry
file = CorpusFile(Path(sys.argv[1]), int(sys.argv[4]))
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    file.write([entry(number, float(number), 2000)])
    print(number, flush=True)
"""


def writer(file: CorpusFile, first: int, end: int, budget: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(file.path), str(first), str(end), str(budget)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
@pytest.mark.parametrize("budget", [100_000_000, 60_000], ids=["appending", "making room"])
def test_a_writer_that_is_killed_costs_at_most_what_it_was_writing(file: CorpusFile, budget: int) -> None:
    process = writer(file, 0, 100_000, budget)
    assert process.stdout is not None
    done = [int(process.stdout.readline()) for _ in range(30)][-1]
    os.kill(process.pid, signal.SIGKILL)
    done = max([done, *map(int, process.stdout.read().split())])
    process.wait()
    process.stdout.close()
    there = names(file)
    known = [entry(number, 0.0, 2000).name for number in range(done + 2)]
    assert there <= set(known)
    newest = known[: done + 1] if budget > 1_000_000 else known[done - 2 : done + 1]
    assert set(newest) <= there, "all that was written is there, but for what made room"
    file.write([entry(6, time.time())])  # the lock is gone with it
    assert entry(6).name in names(file)


def test_two_writers_at_once(file: CorpusFile) -> None:
    processes = [writer(file, first, first + 25, 10_000_000) for first in (0, 1000)]
    for process in processes:
        assert process.stdout is not None
        assert len(process.stdout.read().split()) == 25
        process.stdout.close()
        assert process.wait() == 0
    wanted = {entry(number, 0.0, 2000).name for first in (0, 1000) for number in range(first, first + 25)}
    assert names(file) == wanted


FULL = """
import logging, resource, sys
from pathlib import Path
from localspec.runtime.kept.corpus import Corpus, CorpusFile
from tests.runtime.corpus_texts import LONG, knows, text
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
corpus = Corpus(CorpusFile(Path(sys.argv[1]), 1_000_000), 30_000)
for number in range(5):
    corpus.keep(text(number, LONG))
corpus.settle()
assert all(knows(corpus, text(number, LONG)) for number in range(5)), "memory is not full"
corpus.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_full_disk_is_said_once_and_answers_go_on(file: CorpusFile) -> None:
    found = subprocess.run([sys.executable, "-c", FULL, str(file.path)], capture_output=True, text=True, check=True)
    assert found.stderr.count("\n") == 1, "one sentence"
    assert "one.sqlite cannot be used: disk I/O error; answers go on" in found.stderr
    assert kept(file) == [text(number, LONG).tolist() for number in range(2)]


def test_a_file_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "one.sqlite"
    path.mkdir()
    corpus = opened(CorpusFile(path, BUDGET))
    corpus.keep(text(0))
    corpus.settle()
    assert knows(corpus, text(0))
    corpus.close()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


# -- in an engine ----------------------------------------------------------------------------------------------------


def ask(engine: Engine, prompt: str) -> list[int]:
    found = engine.generate(prompt, sampling=SamplingParams(temperature=0.0), max_tokens=40, ignore_end=True)
    found.text()
    return found.tokens


def test_an_engine_keeps_answers_and_finds_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    options: dict[str, Any] = {"context": 256, "threads": 1, "tuned": False, "drafter": "suffix", "max_draft_tokens": 4}
    with Engine.load(**options, exact="strict") as engine:
        plain = ask(engine, "The river")
    assert not (tmp_path / "corpus").exists(), "nothing is kept unless it is asked for"
    for turn in range(2):
        with Engine.load(**options, exact="strict", corpus="on") as engine:
            corpus = engine.loaded.corpus
            assert corpus is not None
            corpus.settle()
            assert tokens_held(corpus._index) == (40 if turn else 0)
            assert ask(engine, "The river") == plain
    (path,) = (tmp_path / "corpus").glob("*.sqlite")
    with closing(CorpusFile(path, BUDGET)) as file:
        (one,) = file.read()
    assert one.model == "tiny-target-q8_0.gguf"
    assert one.tokens.tolist() == plain
    assert one.used == pytest.approx(time.time(), abs=3600)


def test_an_engine_forgets_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the answer that is under way; with and without a corpus of its own."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    options: dict[str, Any] = {"context": 256, "threads": 1, "tuned": False, "exact": "off", "drafter": "none"}
    asked: dict[str, Any] = {"max_tokens": 20, "ignore_end": True}
    with Engine.load(**options, corpus="on") as engine:
        engine.work_when_idle()
        assert engine.loaded.corpus in engine._idle
        for chat in ("one", "two", "three"):
            engine.generate(f"Chat {chat}", chat=chat, **asked).text()
        endless = engine.generate("The river", chat="two", **(asked | {"max_tokens": 200}))
        next(iter(endless))
        engine.forget_chat("two")
        endless.text()
    (path,) = (tmp_path / "corpus").glob("*.sqlite")
    file = CorpusFile(path, BUDGET)
    assert [one.name[:8] for one in file.read()] == [mark_of("one"), mark_of("three")]
    with Engine.load(**options) as engine:
        engine.forget_chat("one")
    assert [one.name[:8] for one in file.read()] == [mark_of("three")]
    file.close()
