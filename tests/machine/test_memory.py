"""Free memory: the system's word, or a control group's where that is less."""

from __future__ import annotations

import os

import pytest

from localspec.machine import available_bytes, ram
from tests.machine.conftest import GROUPS, Plant

KIB = 1024
MEMINFO = {
    "proc/meminfo": "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:   600 kB\nHugePages_Total: 0\nodd",
}
V2, V1 = MEMINFO | {"proc/self/cgroup": GROUPS["v2"]}, MEMINFO | {"proc/self/cgroup": GROUPS["v1"]}


def test_what_linux_says(plant: Plant) -> None:
    found = ram(plant(MEMINFO))
    assert (found.name, found.kind, found.free_bytes, found.total_bytes) == ("CPU", "cpu", 600 * KIB, 1000 * KIB)


@pytest.mark.parametrize(
    ("files", "left", "total"),
    [
        ({}, 600 * KIB, 1000 * KIB),
        ({"memory.max": "max", "memory.high": "max", "memory.current": "99"}, 600 * KIB, 1000 * KIB),
        ({"memory.max": str(1 << 40), "memory.current": "0"}, 600 * KIB, 1000 * KIB),
        ({"memory.max": "512000", "memory.current": "300000"}, 212_000, 512_000),
        (
            {
                "memory.max": "512000",
                "memory.current": "300000",
                "memory.stat": "anon 1000\ninactive_file 50000\nactive_file 9000\nbad line here",
            },
            271_000,
            512_000,
        ),
        ({"memory.max": "512000", "memory.high": "400000", "memory.current": "300000"}, 100_000, 400_000),
        ({"memory.max": "512000", "memory.current": "600000"}, 0, 512_000),
        ({"memory.max": "512000", "memory.current": "5", "memory.stat": "active_file 9"}, 512_000, 512_000),
        ({"memory.max": "512000"}, 512_000, 512_000),
        ({"memory.max": "-5"}, 600 * KIB, 1000 * KIB),
    ],
)
@pytest.mark.parametrize("group", ["", "system.slice/", "system.slice/a.service/"])
def test_the_second_version(plant: Plant, group: str, files: dict[str, str], left: int, total: int) -> None:
    root = plant(V2 | {f"cgroup/{group}{name}": text for name, text in files.items()})
    assert available_bytes(root) == left
    assert (ram(root).free_bytes, ram(root).total_bytes) == (max(1, left), total), "0 would mean unknown"


@pytest.mark.parametrize("group", ["memory/", "memory/a/"])
def test_the_first_version(plant: Plant, group: str) -> None:
    files = {
        "memory.limit_in_bytes": "500000",
        "memory.usage_in_bytes": "450000",
        "memory.stat": "inactive_file 1\nactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 20000",
    }
    root = plant(V1 | {f"cgroup/{group}{name}": text for name, text in files.items()})
    assert available_bytes(root) == 170_000
    assert ram(root).total_bytes == 500_000
    plant({f"cgroup/{group}memory.limit_in_bytes": "9223372036854771712"})
    assert available_bytes(root) == 600 * KIB


def test_where_least_is_left_and_the_lowest_limit_count(plant: Plant) -> None:
    files = {"": (500_000, 400_000), "system.slice/": (300_000, 50_000), "other.slice/": (10, 10)}
    both = {
        f"cgroup/{group}memory.{name}": str(number)
        for group, numbers in files.items()
        for name, number in zip(("max", "current"), numbers, strict=True)
    }
    root = plant(V2 | both)
    assert (available_bytes(root), ram(root).total_bytes) == (100_000, 300_000)


def test_a_system_that_does_not_say_what_is_free(plant: Plant) -> None:
    root = plant({"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: x kB\nMemAvailable:"})
    assert available_bytes(root) is None
    assert ram(root).free_bytes == 1000 * KIB
    plant({"cgroup/memory.max": "400", "cgroup/memory.current": "0"})
    assert available_bytes(root) == 400


def test_a_system_that_says_nothing(plant: Plant) -> None:
    found = ram(plant({}))
    assert found.free_bytes == found.total_bytes
    assert (found.total_bytes > 0) == hasattr(os, "sysconf")


def test_this_machine_has_memory() -> None:
    found = ram()
    assert 0 < found.free_bytes <= found.total_bytes
