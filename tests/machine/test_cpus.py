"""CPUs that may be used, limits of both versions of control groups, and batteries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec import machine
from localspec.machine import groups
from tests.machine.conftest import GROUPS, Plant


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight CPUs may be used."""
    monkeypatch.setattr(machine, "allowed", lambda: range(8))


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("version", "files", "threads"),
    [
        ("v2", {}, 8),
        ("v2", {"cpu.max": "max 100000"}, 8),
        ("v2", {"cpu.max": "400000 100000"}, 4),
        ("v2", {"cpu.max": "900000 100000"}, 8),
        ("v2", {"system.slice/a.service/cpu.max": "250000 100000", "cpu.max": "max 100000"}, 2),
        ("v2", {"system.slice/cpu.max": "200000 100000", "system.slice/a.service/cpu.max": "300000 100000"}, 2),
        ("v1", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 8),
        ("v1", {"cpu/system.slice/cpu.cfs_quota_us": "50000", "cpu/system.slice/cpu.cfs_period_us": "100000"}, 1),
        ("v1", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("v2", {"other.slice/cpu.max": "100000 100000"}, 8),
        ("v2", {"cpu.max": "100000 0"}, 8),
    ],
)
def test_the_least_of_all_groups_counts(plant: Plant, version: str, files: dict[str, str], threads: int) -> None:
    root = plant({"proc/self/cgroup": GROUPS[version]} | {f"cgroup/{name}": text for name, text in files.items()})
    assert machine.default_threads(root) == threads


@pytest.mark.usefixtures("eight")
def test_two_threads_of_a_core_count_once(plant: Plant) -> None:
    siblings = {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 3}" for cpu in range(6)}
    assert machine.default_threads(plant(siblings)) == 5, "two CPUs do not say whose siblings they are"


def test_groups_that_cannot_be_seen_are_passed_over(plant: Plant) -> None:
    root = plant({"proc/self/cgroup": "0::/../x\nodd line"})
    top = root / "sys/fs/cgroup"
    assert groups("cpu", root) == [top, top / "cpu"]


def test_this_machine_has_cpus() -> None:
    assert 1 <= machine.default_threads() <= len(machine.allowed()) <= (os.cpu_count() or 1)


def test_another_system_may_use_all_of_them(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_getaffinity", "getloadavg"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.default_threads(plant({})) == 6
    assert machine.load() is None


def test_threads_of_others_that_run_now(plant: Plant) -> None:
    assert machine.others(root=plant({})) == 0
    tasks = {
        "self/task/7/stat": "7 (a R b) R 1",
        "self/task/8/stat": "8 (idle) S 1",
        "31/task/31/stat": "31 (face) R 1",
    }
    root = plant({"proc/stat": "cpu  1 2\nprocs_running 5\n", **{f"proc/{name}": text for name, text in tasks.items()}})
    assert machine.others(root=root) == 4
    assert machine.others(["self", "31", "99"], root) == 3


AC, BATTERY = {"type": "Mains", "online": "0"}, {"type": "Battery"}


@pytest.mark.parametrize(
    ("supplies", "found"),
    [
        ({}, False),
        ({"AC": AC | {"online": "1"}, "BAT0": BATTERY}, False),
        ({"AC": AC | {"online": "1"}, "BAT0": BATTERY | {"status": "Discharging"}}, False),
        ({"AC": AC, "BAT0": BATTERY}, True),
        ({"AC": AC, "BAT0": BATTERY | {"scope": "System"}}, True),
        ({"AC": AC, "USB": {"type": "USB", "online": "1"}, "BAT0": BATTERY}, False),
        ({"ucsi-source-psy-1": {"type": "USB", "scope": "Unknown", "online": "0"}}, False),
        ({"AC": AC, "mouse": BATTERY | {"scope": "Device", "online": "0"}}, False),
        ({"mouse": BATTERY | {"scope": "Device", "status": "Discharging"}}, False),
        ({"BAT0": BATTERY}, False),
        ({"BAT0": BATTERY | {"status": "Charging"}}, False),
        ({"BAT0": BATTERY | {"status": "Discharging"}}, True),
    ],
)
def test_batteries(plant: Plant, supplies: dict[str, dict[str, str]], found: bool) -> None:
    files = {f"{name}/{what}": value for name, said in supplies.items() for what, value in said.items()}
    assert machine.on_battery(plant({f"sys/class/power_supply/{name}": text for name, text in files.items()})) == found


def test_the_system_is_asked_in_one_place() -> None:
    package = Path(machine.__file__).parent
    words = (
        "sched_getaffinity",
        "getloadavg",
        "procs_running",
        "/meminfo",
        "/cgroup",
        "self/maps",
        "power_supply",
        "SC_PHYS_PAGES",
    )
    asks = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in words)
    }
    assert asks == {"machine.py"}
