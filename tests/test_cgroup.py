"""Limits of containers and services, of either version of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import cgroup
from localspec.llama.library import lib

GROUPS = {
    "v2": "0::/system.slice/a.service\n",
    "v1": "3:memory:/a\n2:cpu,cpuacct:/system.slice/a.service\n1:name=x:/\n",
}


@pytest.mark.parametrize(
    ("version", "files", "cpus"),
    [
        ("v2", {}, None),
        ("v2", {"cpu.max": "max 100000"}, None),
        ("v2", {"cpu.max": "400000 100000"}, 4.0),
        ("v2", {"system.slice/a.service/cpu.max": "150000 100000", "cpu.max": "max 100000"}, 1.5),
        ("v2", {"system.slice/cpu.max": "200000 100000", "system.slice/a.service/cpu.max": "300000 100000"}, 2.0),
        ("v1", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, None),
        ("v1", {"cpu/system.slice/cpu.cfs_quota_us": "50000", "cpu/system.slice/cpu.cfs_period_us": "100000"}, 0.5),
        ("v1", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ("v2", {"other.slice/cpu.max": "100000 100000"}, None),
        ("v2", {"cpu.max": "100000 0"}, None),
    ],
)
def test_the_least_of_all_groups_counts(
    version: str, files: dict[str, str], cpus: float | None, tmp_path: Path
) -> None:
    (own := tmp_path / "own").write_text(GROUPS[version])
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert cgroup.cpus(tmp_path / "root", own) == cpus


def test_a_service_has_its_own_memory(tmp_path: Path) -> None:
    (own := tmp_path / "own").write_text("0::/a/b\n")
    for group, limit, used in (("a", 900, 100), ("a/b", 1000, 600)):
        folder = tmp_path / "root" / group
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text(str(limit))
        (folder / "memory.current").write_text(str(used))
    assert cgroup.memory(tmp_path / "root", own) == (1000, 400)


def test_groups_that_cannot_be_seen_are_passed_over(tmp_path: Path) -> None:
    (own := tmp_path / "own").write_text("0::/../x\nodd line\n")
    assert cgroup.folders("cpu", tmp_path, own) == [tmp_path, tmp_path / "cpu"]
    assert cgroup.cpus(tmp_path, tmp_path / "none") is None


def test_a_system_that_does_not_say_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 1000 kB\nMemFree: 10 kB\n")
    monkeypatch.setattr(cgroup, "memory", lambda: None)
    assert lib.available_bytes() is None
    monkeypatch.setattr(cgroup, "memory", lambda: (1000, 400))
    assert lib.available_bytes() == 400
