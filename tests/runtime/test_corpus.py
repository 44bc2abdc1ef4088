"""Past answers that last: what is searched, what is kept, and what becomes of it when things go wrong."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import LocalspecError
from localspec.runtime.engine import Engine
from localspec.runtime.kept.corpus import Corpus, erase, folder
from localspec.runtime.kept.corpus_file import CorpusFile, Sequence, mark_of, name_of
from localspec.types import SamplingParams, Tokens
from tests.native.inside import tokens_held
from tests.runtime.corpus_texts import entry, guess, knows, text

BUDGET = 1_000_000


def tokens_of(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


@pytest.fixture
def file(tmp_path: Path) -> CorpusFile:
    return CorpusFile(tmp_path / "corpus" / "one.tokens", BUDGET)


def kept(file: CorpusFile) -> list[list[int]]:
    return [one.tokens.tolist() for one in file.read().sequences]


def opened(file: CorpusFile) -> Corpus:
    corpus = Corpus(CorpusFile(file.path, file.budget), 30_000)
    corpus.wait()
    return corpus


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_answers_last(file: CorpusFile) -> None:
    corpus = opened(file)
    for number in range(3):
        corpus.keep(text(number))
    corpus.keep(tokens_of(1, 2, 3))  # too short
    corpus.wait()
    assert all(knows(corpus, text(number)) for number in range(3))
    corpus.close()
    corpus.close()
    again = opened(file)
    assert all(knows(again, text(number)) for number in range(3))
    assert not knows(again, text(3))
    again.close()
    assert kept(file) == [text(number).tolist() for number in range(3)]
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_the_same_answer_is_kept_once_and_counts_as_used(file: CorpusFile) -> None:
    corpus = opened(file)
    for number in (0, 1, 0):
        corpus.keep(text(number))
    corpus.close()
    assert kept(file) == [text(1).tolist(), text(0).tolist()]


def test_what_is_of_least_use_makes_room(file: CorpusFile) -> None:
    size = entry(0).size
    small = CorpusFile(file.path, 20 * size)
    corpus = opened(small)
    for number in range(19):
        corpus.keep(text(number))
    corpus.wait()
    found = guess(corpus, text(2)[:-8])
    corpus.used(found.sequence)
    for number in range(19, 30):
        corpus.keep(text(number))
    corpus.wait()
    assert knows(corpus, text(2))
    assert knows(corpus, text(29))
    assert not knows(corpus, text(0))
    corpus.close()
    assert small.path.stat().st_size <= small.budget
    left = kept(small)
    assert text(2).tolist() in left
    assert text(29).tolist() in left
    assert text(0).tolist() not in left


def test_a_smaller_budget_cuts_nothing_that_others_keep(file: CorpusFile) -> None:
    size = entry(0).size
    file.add([entry(number, float(number)) for number in range(100)])
    small = CorpusFile(file.path, 20 * size)
    corpus = opened(small)
    assert knows(corpus, text(99))
    assert not knows(corpus, text(50)), "it reads as much as it may keep"
    for number in range(100, 130):
        corpus.keep(text(number))
    corpus.close()
    there = {one.name for one in file.read().sequences}
    assert there == {entry(number).name for number in range(130)}
    assert small.trim() == 110
    assert small.trim() == 0
    assert {one.name for one in file.read().sequences} == {entry(number).name for number in range(110, 130)}
    small.add([entry(200, time.time())])
    assert file.path.stat().st_size <= small.budget, "what was agreed before is forgotten"


def test_a_file_without_an_agreement_may_stay_as_large_as_it_is(file: CorpusFile) -> None:
    file.add([entry(number, float(number)) for number in range(40)])
    file.path.with_name(f"{file.path.name}.budget").unlink()
    small = CorpusFile(file.path, 20 * entry(0).size)
    small.add([entry(100, time.time())])
    assert len(file.read().sequences) == 30, "it makes room as any full file does"
    assert CorpusFile(file.path.with_name("none.tokens"), 1000).trim() == 0


def test_answers_of_a_deleted_chat_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    file, other = (CorpusFile(folder() / f"{name}.tokens", BUDGET) for name in ("one", "other"))
    other.add([Sequence(name_of(text(0), "a"), text(0), 1.0), entry(5)])
    corpus = opened(file)
    for number, chat in enumerate(("a", "b", "a", None)):
        corpus.keep(text(number), chat)
    corpus.keep(text(0), "b")  # two chats may have the same answer
    corpus.forget("a")
    corpus.wait()
    assert [knows(corpus, text(number)) for number in range(4)] == [True, True, False, True]
    corpus.forget("b")
    corpus.forget("nobody's")
    corpus.wait()
    assert [knows(corpus, text(number)) for number in range(4)] == [False, False, False, True]
    corpus.keep(text(1), "b")
    corpus.close()
    assert kept(file) == [text(3).tolist(), text(1).tolist()]
    assert kept(other) == [text(5).tolist()], "a chat may have been answered by several models"
    erase("b")
    assert kept(file) == [text(3).tolist()]
    other.path.unlink()
    other.path.mkdir()
    with pytest.raises(LocalspecError, match=r"cannot be taken out of the corpus .*other\.tokens: Is a directory"):
        erase("b")


def test_answers_that_cannot_leave_are_said_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    (folder() / "broken.tokens").mkdir(parents=True)
    file = CorpusFile(folder() / "one.tokens", BUDGET)
    corpus = opened(file)
    for chat in ("a", "b"):
        corpus.keep(text(0), chat)
        corpus.forget(chat)
    corpus.close()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["cannot be taken out of the corpus" in one for one in said] == [True, True]
    assert kept(file) == [], "files that can be written lose them all the same"


def test_tokens_of_another_vocabulary_are_left_out(file: CorpusFile) -> None:
    file.add([entry(0), Sequence(b"x" * 16, tokens_of(*range(1, 40), 30_000), 1.0)])
    corpus = opened(file)
    assert knows(corpus, text(0))
    assert guess(corpus, tokens_of(1, 2, 3)).match == 0
    corpus.close()


def test_while_it_is_worked_on_nobody_waits(file: CorpusFile) -> None:
    corpus = opened(file)
    corpus.keep(text(0))
    corpus.wait()
    with corpus._lock:
        assert not knows(corpus, text(0))
    assert knows(corpus, text(0))
    corpus.close()


# -- what goes wrong -------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(cut=st.integers(0, 5 * 200), flip=st.integers(0, 5 * 200 - 1), garbage=st.binary(max_size=60))
def test_damage_costs_what_is_damaged_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, garbage: bytes
) -> None:
    file = CorpusFile(tmp_path_factory.mktemp("corpus") / "one.tokens", BUDGET)
    entries = [entry(number, float(number)) for number in range(5)]
    file.add(entries)
    data = bytearray(file.path.read_bytes())
    size = entries[0].size
    assert len(data) == 5 * size == 5 * 200
    data[flip] ^= 0x10
    file.path.write_bytes(bytes(data[:cut]) + garbage)
    found = {one.name for one in file.read().sequences}
    assert found == {one.name for i, one in enumerate(entries) if (i + 1) * size <= cut and i != flip // size}
    file.add([entry(7)])
    assert {one.name for one in file.read().sequences} == found | {entry(7).name}
    file.mend()
    mended = file.read()
    assert mended.lost == 0
    assert {one.name for one in mended.sequences} == found | {entry(7).name}


def test_damage_is_said_in_a_sentence_and_mended(file: CorpusFile, caplog: pytest.LogCaptureFixture) -> None:
    file.add([entry(number) for number in range(3)])
    with open(file.path, "r+b") as raw:
        raw.seek(entry(0).size + 60)
        raw.write(b"\0\0\0\0\0\0\0\0")
    corpus = opened(file)
    assert [knows(corpus, text(number)) for number in range(3)] == [True, False, True]
    corpus.close()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "was damaged: 200 of its 600 bytes cannot be read and are left out; 2 texts are there." in said
    caplog.clear()
    opened(file).close()
    assert not caplog.records


WRITER = """
import sys
from pathlib import Path
from localspec.runtime.kept.corpus_file import CorpusFile
from tests.runtime.corpus_texts import entry
file = CorpusFile(Path(sys.argv[1]), int(sys.argv[4]))
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    file.add([entry(number, float(number), 2000)])
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
    there = [one.name for one in file.read().sequences]
    known = [entry(number, 0.0, 2000).name for number in range(done + 2)]
    assert set(there) <= set(known)
    newest = known[: done + 1] if budget > 1_000_000 else known[done - 3 : done + 1]
    assert set(newest) <= set(there), "all that was written is there, but for what made room"
    file.add([entry(-1 % 7)])  # the lock is gone with it
    assert entry(-1 % 7).name in [one.name for one in file.read().sequences]


def test_two_writers_at_once(file: CorpusFile) -> None:
    processes = [writer(file, first, first + 25, 10_000_000) for first in (0, 1000)]
    for process in processes:
        assert process.stdout is not None
        assert len(process.stdout.read().split()) == 25
        process.stdout.close()
        assert process.wait() == 0
    found = file.read()
    assert found.lost == 0
    wanted = {entry(number, 0.0, 2000).name for first in (0, 1000) for number in range(first, first + 25)}
    assert {one.name for one in found.sequences} == wanted


FULL = """
import logging, resource, sys
from pathlib import Path
from localspec.runtime.kept.corpus import Corpus
from localspec.runtime.kept.corpus_file import CorpusFile
from tests.runtime.corpus_texts import knows, text
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
corpus = Corpus(CorpusFile(Path(sys.argv[1]), 1_000_000), 30_000)
for number in range(5):
    corpus.keep(text(number))
corpus.wait()
assert all(knows(corpus, text(number)) for number in range(5)), "memory is not full"
corpus.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_full_disk_is_said_once_and_answers_go_on(file: CorpusFile) -> None:
    found = subprocess.run([sys.executable, "-c", FULL, str(file.path)], capture_output=True, text=True, check=True)
    assert found.stderr.count("\n") == 1, "one sentence"
    assert "cannot be kept (File too large); answers go on" in found.stderr
    assert kept(file) == [text(0).tolist(), text(1).tolist()]
    assert file.read().lost == 0


def test_a_file_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "one.tokens"
    path.mkdir()
    corpus = opened(CorpusFile(path, BUDGET))
    corpus.keep(text(0))
    corpus.wait()
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
            corpus.wait()
            assert tokens_held(corpus._index) == (40 if turn else 0)
            assert ask(engine, "The river") == plain
    (path,) = (tmp_path / "corpus").glob("*.tokens")
    (one,) = CorpusFile(path, BUDGET).read().sequences
    assert one.tokens.tolist() == plain
    assert one.used == pytest.approx(time.time(), abs=3600)


def test_an_engine_forgets_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the answer that is under way; with and without a corpus of its own."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    options: dict[str, Any] = {"context": 256, "threads": 1, "tuned": False, "exact": "off", "drafter": "none"}
    asked: dict[str, Any] = {"max_tokens": 20, "ignore_end": True}
    with Engine.load(**options, corpus="on") as engine:
        for chat in ("one", "two", "three"):
            engine.generate(f"Chat {chat}", chat=chat, **asked).text()
        endless = engine.generate("The river", chat="two", **(asked | {"max_tokens": 200}))
        next(iter(endless))
        engine.forget_chat("two")
        endless.text()
    (path,) = (tmp_path / "corpus").glob("*.tokens")
    marks = [one.name[:8] for one in CorpusFile(path, BUDGET).read().sequences]
    assert marks == [mark_of("one"), mark_of("three")]
    with Engine.load(**options) as engine:
        engine.forget_chat("one")
    assert [one.name[:8] for one in CorpusFile(path, BUDGET).read().sequences] == [mark_of("three")]
