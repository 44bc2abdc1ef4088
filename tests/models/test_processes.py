"""Which processes have models open: told by locks, so that dead processes never count."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec import processes
from localspec.machine import taken

HOLDER = """
import sys
from pathlib import Path
from localspec.processes import announce
announce("chat", Path(sys.argv[1]), None, 128)
print("ready", flush=True)
sys.stdin.read()
"""

WORKER = """
import mmap, sys
file = open(sys.argv[1], "rb")
pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))


def holder(target: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(target)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_process_is_listed_as_long_as_it_lives(tmp_path: Path, how: str) -> None:
    target = tmp_path / "m.gguf"
    target.touch()
    with holder(target) as process:
        (found,) = processes.running()
        assert (found.pid, found.command, found.target, found.context) == (process.pid, "chat", str(target), 128)
        assert processes.users_of({target}) == [found]
        assert processes.users_of({tmp_path / "other.gguf"}) == []
        if how == "is killed":
            process.kill()
        else:
            process.communicate()
    assert processes.running() == []
    assert list(processes.folder().glob("*")) == []


def test_an_old_file_with_the_id_of_a_living_process_does_not_count() -> None:
    processes.folder().mkdir(parents=True)
    old = processes.folder() / f"{os.getpid()}-1.json"
    old.write_text('{"pid": 1, "command": "chat", "target": "x", "draft": "", "context": 0, "started": 0}')
    assert processes.running() == []
    assert not old.exists()


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "file"))
    processes.announce("run", tmp_path / "m.gguf")
    assert processes.running() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is mapped")
def test_memory_is_that_of_the_process_that_has_the_model_open(tmp_path: Path) -> None:
    target, other = tmp_path / "m.gguf", tmp_path / "other.gguf"
    for file in (target, other):
        file.write_bytes(b"GGUF" * 1024)
    end, end_other = (processes.announce("serve", file) for file in (target, other))
    try:
        named = {process.target: process for process in processes.running()}
        assert [process.memory() for process in named.values()] == [0, 0], "nobody has them open"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", WORKER, str(target)], **pipes) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
            assert named[str(target)].memory() == taken(worker.pid)[0] > 1 << 20
            assert named[str(other)].memory() == 0
            worker.communicate()
    finally:
        end()
        end_other()
