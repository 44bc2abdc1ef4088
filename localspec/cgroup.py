"""Limits that Linux sets a container or a service: those of its own control group and of all above it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
"""Says in which groups this process is."""


def folders(controller: str, root: Path = ROOT, own: Path = OWN) -> list[Path]:
    """Where files may stand that limit this process, of either version.

    Args:
        controller: name of what limits, such as "cpu".
        root: where groups are mounted.
        own: which groups this process is in.
    """
    found = dict.fromkeys((root, root / controller))
    for line in text_of(own).splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        group = path.strip("/").split("/")
        if ".." in group or (names and controller not in names.split(",")):
            continue
        for top in (root / names, root / controller) if names else (root,):
            found |= dict.fromkeys(top.joinpath(*group[:depth]) for depth in range(len(group) + 1))
    return list(found)


def cpus(root: Path = ROOT, own: Path = OWN) -> float | None:
    """CPUs' worth of time that this process may take; None = as much as there is."""
    least = None
    for folder in folders("cpu", root, own):
        words = text_of(folder / "cpu.max").split() or [
            text_of(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        ]
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            share = int(words[0]) / int(words[1])
            least = share if least is None else min(least, share)
    return least


def memory(root: Path = ROOT, own: Path = OWN) -> tuple[int, int] | None:
    """(limit, what is left of it) in bytes where least is left; None without a limit.

    File pages that can be dropped count as left.
    """
    found = []
    for folder in folders("memory", root, own):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = text_of(folder / limit_name).strip()
            if not limit.isdigit() or int(limit) >= 1 << 60:  # "max", or version 1's way to say so
                continue
            used = text_of(folder / used_name).strip()
            pairs = (line.split() for line in text_of(folder / "memory.stat").splitlines())
            stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
            droppable = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            found.append((int(limit), max(0, int(limit) - (int(used) if used.isdigit() else 0) + droppable)))
    return min(found, key=lambda room: room[1], default=None)


def text_of(path: Path) -> str:
    """ "" where there is no such file."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
