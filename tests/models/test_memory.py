"""Free memory: the system's word, or the container's where that is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.cgroup import memory as container_room
from localspec.models.memory.memory import ram

KIB = 1024


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:   600 kB\nHugePages_Total: 0\nodd\n")
    return path


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_what_linux_says(meminfo: Path, tmp_path: Path) -> None:
    found = ram(meminfo, tmp_path / "none")
    assert (found.name, found.kind, found.free_bytes, found.total_bytes) == ("CPU", "cpu", 600 * KIB, 1000 * KIB)


def test_a_container_may_have_less(meminfo: Path, tmp_path: Path) -> None:
    group = write(tmp_path / "v2", memory_dot_max="512000\n", memory_dot_current="300000\n")
    assert container_room(group) == (512_000, 212_000)
    write(group, memory_dot_stat="anon 1000\ninactive_file 50000\nbad line here\n")
    assert container_room(group) == (512_000, 262_000)
    found = ram(meminfo, group)
    assert (found.free_bytes, found.total_bytes) == (262_000, 512_000)


def test_a_container_may_have_more_than_there_is(meminfo: Path, tmp_path: Path) -> None:
    group = write(tmp_path / "v2", memory_dot_max=str(1 << 40), memory_dot_current="0")
    assert ram(meminfo, group).free_bytes == 600 * KIB


def test_containers_of_the_first_version(tmp_path: Path) -> None:
    group = write(
        tmp_path / "v1",
        memory__memory_dot_limit_in_bytes="1000000",
        memory__memory_dot_usage_in_bytes="900000",
        memory__memory_dot_stat="total_inactive_file 100000\n",
    )
    assert container_room(group) == (1_000_000, 200_000)


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", "", "-5"])
def test_no_limit(limit: str, tmp_path: Path) -> None:
    assert container_room(write(tmp_path, memory_dot_max=limit)) is None


def test_this_machine_has_memory() -> None:
    found = ram()
    assert 0 < found.free_bytes <= found.total_bytes


def test_a_system_that_says_little(tmp_path: Path) -> None:
    found = ram(tmp_path / "none", tmp_path / "none")
    assert found.free_bytes == found.total_bytes
