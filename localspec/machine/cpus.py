"""CPUs: how many this process may use, and what slows them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from localspec.machine import ROOT, groups, text_of


def allowed() -> Collection[int]:
    """Numbers of the logical CPUs that this process may use."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return range(os.cpu_count() or 1)


def default_threads(root: Path = ROOT) -> int:
    """Physical cores that this process may use, as far as it may have all of their time; at least 1."""
    topology = root / "sys/devices/system/cpu"
    cores = {text_of(topology / f"cpu{cpu}/topology/thread_siblings_list") or cpu for cpu in allowed()}
    return max(1, int(min([len(cores), *_quotas(root)])))


def load() -> float | None:
    """Programs that want to run on this machine, mean of the last minute; None where the system does not say."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def others(processes: Sequence[str] = ("self",), root: Path = ROOT) -> int:
    """Threads of other programs that run or want to, now; 0 where the system does not say.

    Args:
        processes: those whose threads do not count, by their names in /proc.
        root: where the system's files are.
    """
    running = re.search(r"^procs_running (\d+)", text_of(root / "proc/stat"), re.MULTILINE)
    if running is None:
        return 0
    tasks = (task for process in processes for task in (root / "proc" / process / "task").glob("*/stat"))
    own = sum(text_of(task).rpartition(")")[2].startswith(" R") for task in tasks)
    return max(0, int(running[1]) - own)


def on_battery(root: Path = ROOT) -> bool:
    """Whether the machine runs on its battery, as far as Linux says so; elsewhere it counts as plugged in.

    A desktop has plugs that are not used (USB-C), and batteries of other devices (a mouse). Where no plug is listed,
    the battery's own word counts.
    """
    supplies = list((root / "sys/class/power_supply").glob("*"))
    plugs = [online for one in supplies if (online := text_of(one / "online"))]
    own = [one for one in supplies if text_of(one / "type") == "Battery" and text_of(one / "scope") != "Device"]
    drained = any(text_of(one / "status") == "Discharging" for one in own)
    return "1" not in plugs and bool(own) and (bool(plugs) or drained)


def _quotas(root: Path) -> list[float]:
    """CPUs' worth of time that control groups let this process have, of each that limits it."""
    found = []
    for folder in groups("cpu", root):
        words = text_of(folder / "cpu.max").split() or [
            text_of(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        ]
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            found.append(int(words[0]) / int(words[1]))
    return found
