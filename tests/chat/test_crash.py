"""Programs killed while an answer streams, full disks, several programs at once: real processes on a real file."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.archive.archive import Archive
from tests.chat.conftest import made

STREAM = """
import sys, time
from pathlib import Path
from localspec.chat.archive.archive import Archive
from localspec.engine.slot import PassRecord

archive, log = Archive.open(Path(sys.argv[1])), open(sys.argv[2], "w", buffering=1)
chat = archive.new_chat()
for turn in range(1000):
    question = archive.append_user(chat.id, f"question {turn}")
    writer = archive.begin_answer(question.id, piece=lambda token: b"%d " % token)
    for count in range(40 if turn < 3 else 100_000):
        record = PassRecord("draft", (count, 7), (-1, 0), (0,), 9, 3, 0.001)
        writer.extend(f"{count} ", reasoning="r", record=record)
        log.write(f"{time.time()} extended {writer.message_id} {count + 1}\\n")
        time.sleep(0.002)
    writer.finish()
    log.write(f"{time.time()} finished {writer.message_id} {count + 1}\\n")
"""


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def integrity(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO message_words(message_words) VALUES ('integrity-check')")
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def killed_while_streaming(folder: Path, seed: int) -> None:
    """Kills a streaming program at a random moment, and looks at what it left."""
    file, log = folder / "chats.sqlite3", folder / "log"
    with run(STREAM, file, log) as child:
        while not (log.exists() and log.stat().st_size):
            assert child.poll() is None, child.stderr
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0.0, 2.5))
        killed_at = time.time()
        child.send_signal(signal.SIGKILL)
    lines = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 3]
    with Archive.open(file) as archive:
        assert archive.notice == ""
        (chat,) = archive.chats()
        answers = {message.id: message for message in archive.path(chat.id) if message.role == "assistant"}
        for at, what, key, count in lines:
            message = answers.get(int(key))
            if what == "finished" or float(at) < killed_at - 1.0:
                assert message is not None, f"lost {what} message {key}"
                assert len(message.content.split()) >= int(count), (at, killed_at)
        for message in answers.values():
            words = message.content.split()
            assert words == [str(number) for number in range(len(words))]
            assert message.state in ("done", "stopped")
            assert len(archive.replay(message.id).passes) == len(words) == len(message.reasoning)
        assert [message.state for message in answers.values()][:-1] == ["done"] * (len(answers) - 1)
    assert integrity(file) == "ok"
    assert sorted(path.name for path in folder.iterdir()) == ["chats.sqlite3", "log"]


def kill_many(folder: Path, seeds: Sequence[int]) -> None:
    def once(seed: int) -> None:
        place = folder / str(seed)
        place.mkdir()
        killed_while_streaming(place, seed)

    with ThreadPoolExecutor(5) as pool:  # they mostly sleep
        list(pool.map(once, seeds))


CALLING = """
import sys, time
from pathlib import Path
from localspec.chat.archive.archive import Archive
from tests.chat.conftest import made

archive = Archive.open(Path(sys.argv[1]))
writer = archive.begin_answer(archive.append_user(archive.new_chat().id, "What time is it?").id)
writer.extend("I look.", reasoning="When?")
writer.add_call(made("time", "3 pm", said=7, thought=5))
writer.flush()
print("called", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_call_that_was_made_survives_a_kill(tmp_path: Path) -> None:
    with run(CALLING, tmp_path / "chats.sqlite3") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "called\n", child.stderr and child.stderr.read()
        child.kill()
    with Archive.open(tmp_path / "chats.sqlite3") as archive:
        answer = archive.path(archive.chats()[0].id)[-1]
    assert (answer.content, answer.state, answer.calls) == ("I look.", "stopped", (made("time", "3 pm", 0, 7, 5),))


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_kill_loses_at_most_the_last_second(tmp_path: Path) -> None:
    kill_many(tmp_path, range(10))


@pytest.mark.trial
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_hundred_kills_lose_at_most_the_last_second(tmp_path: Path) -> None:
    kill_many(tmp_path, range(100, 200))


LIMITED = """
import resource, sys
from pathlib import Path
from localspec.chat.archive.archive import Archive

resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
archive = Archive.open(Path(sys.argv[1]))
heard = []
archive.on_notice = heard.append
chat = archive.new_chat()
for turn in range(20):
    writer = archive.begin_answer(archive.append_user(chat.id, f"q{turn}").id)
    writer.extend(f"{turn} " * 20_000)
    writer.finish()
assert [len(m.content.split()) for m in archive.path(chat.id)] == [1, 20_000] * 20
assert len(heard) == 1 and not archive.persistent, heard
print(heard[0])
archive.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of processes")
def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    with run(LIMITED, tmp_path / "chats.sqlite3") as child:
        out, error = child.communicate(timeout=60)
    assert child.returncode == 0, error
    assert "cannot be written" in out
    with Archive.open(tmp_path / "chats.sqlite3") as archive:
        assert archive.notice == ""
        assert archive.chats()[0].title == "q0"
    assert integrity(tmp_path / "chats.sqlite3") == "ok"


TOGETHER = """
import sys
from pathlib import Path
from localspec.chat.archive.archive import Archive

with Archive.open(Path(sys.argv[1])) as archive:
    assert archive.persistent, archive.notice
    chat = archive.new_chat()
    for turn in range(60):
        archive.append_user(1, f"shared {turn}")
        writer = archive.begin_answer(archive.append_user(chat.id, f"own {turn}").id)
        for _ in range(5):
            writer.extend("w ")
            writer.flush()
        writer.finish()
    assert len(archive.path(chat.id)) == 120, len(archive.path(chat.id))
"""


def test_programs_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite3"
    with Archive.open(file) as archive:
        shared = archive.new_chat()
        archive.append_user(shared.id, "begin")
        assert shared.id == 1
    children = [run(TOGETHER, file) for _ in range(4)]
    for child in children:
        _, error = child.communicate(timeout=120)
        assert child.returncode == 0, error
    with Archive.open(file) as archive:
        assert len(archive.tree(shared.id)) == 1 + 4 * 60
        assert len(archive.path(shared.id)) == 1 + 4 * 60  # each went on from what was the end then
        assert {message.content for message in archive.tree(2) if message.role == "assistant"} == {"w " * 5}
        assert sorted(found.messages for found in archive.chats()) == [120] * 4 + [241]
    assert integrity(file) == "ok"


def test_four_programs_create_one_archive_together(tmp_path: Path) -> None:
    script = "import sys\nfrom pathlib import Path\nfrom localspec.chat.archive.archive import Archive\n"
    script += "with Archive.open(Path(sys.argv[1])) as a: a.append_user(a.new_chat().id, 'x'); print(a.notice)"
    children = [run(script, tmp_path / "chats.sqlite3") for _ in range(4)]
    assert [child.communicate(timeout=60) for child in children] == [("\n", "")] * 4
    with Archive.open(tmp_path / "chats.sqlite3") as archive:
        assert len(archive.chats()) == 4
