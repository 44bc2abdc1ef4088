"""What processes of models could leave over."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

PATIENCE = 60.0
"""Seconds after which a test says that somebody waits for ever."""


def children() -> set[int]:
    """Processes that this one has started and that were not waited for, zombies included."""
    found = set[int]()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found |= {int(pid) for pid in task.read_text(encoding="ascii").split()}
    return found


def descriptors() -> int:
    """Files, pipes and sockets that are open here."""
    return len(os.listdir("/proc/self/fd"))


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def threads() -> set[threading.Thread]:
    """Threads of this process, but one that waits while other programs are busy (`llama/library/contention.py`)."""
    return {one for one in threading.enumerate() if one.name != "localspec-parked"}


def until(true: Callable[[], bool]) -> None:
    """Waits until something is so; fails if it never is."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it never comes"
        time.sleep(0.01)


@pytest.fixture
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, descriptor, thread or temporary file is left when the test is over."""
    if not Path("/proc/self/task").exists():
        pytest.skip("there is no /proc to look at")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    before = children(), descriptors(), threads()
    yield
    assert children() == before[0]
    assert descriptors() <= before[1]
    assert threads() <= before[2]
    assert list(folder.iterdir()) == []


@pytest.fixture
def nothing_is_left_at_all(runtime: Path, nothing_is_left: None) -> Iterator[None]:
    """Nor is a file in the runtime folder."""
    yield
    assert [path for path in runtime.rglob("*") if not path.is_dir()] == []
