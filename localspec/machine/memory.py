"""Memory: where weights and caches can be put, and what of the CPU's this process may still take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.machine import ROOT, groups, text_of

_NO_LIMIT = 1 << 60
"""Bytes from which on a limit is version 1's way to say that there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where weights and caches can be put."""

    name: str
    """As llama.cpp calls it: "CPU", "CUDA0", "Metal"."""
    kind: Literal["cpu", "gpu"]
    free_bytes: int
    """What can be had without swapping; 0 = unknown."""
    total_bytes: int = 0
    description: str = ""
    """What llama.cpp says of a GPU, such as "NVIDIA GeForce RTX 4090"."""
    unified: bool = False
    """Whether a GPU's memory is the CPU's, so that what is put there is missing here."""
    part: float = 0.0
    """Of the layers on GPUs, in any unit; 0 = as its free memory is to that of the others."""


def total_ram(places: Sequence[Place]) -> int:
    """Bytes of the CPU's memory among these places; 0 = unknown."""
    return next((place.total_bytes for place in places if place.kind == "cpu"), 0)


def ram(root: Path = ROOT) -> Place:
    """The CPU's memory, at most what the lowest limit of a control group leaves of it. Where the system does not say
    what is free (anywhere but on Linux), all of it is."""
    there = _meminfo("MemTotal", root) or [_physical()]
    total = min([*filter(None, there), *(limit for limit, _ in _limits(root))], default=0)
    free = available_bytes(root)
    return Place("CPU", "cpu", total if free is None else max(1, free), total)


def available_bytes(root: Path = ROOT) -> int | None:
    """Memory that this process may still take without swapping; None where that is unknown (anywhere but on Linux).

    It is the least of Linux's `MemAvailable` and, for each control group from this process's own up to the root, the
    limit less what is used and cannot be dropped. Pages of files can be, `active_file` too: `MemAvailable` counts both
    lists (si_mem_available in mm/show_mem.c), and weights that were read twice are on the active one.
    """
    return min([*_meminfo("MemAvailable", root), *(left for _, left in _limits(root))], default=None)


def taken(process: int | str = "self", root: Path = ROOT) -> tuple[int, int]:
    """Bytes of memory that a process takes now, and took at most; 0 = unknown (anywhere but on Linux)."""
    status = root / "proc" / str(process) / "status"
    now, most = (sum(_kilobytes(key, status)) for key in ("VmRSS", "VmHWM"))
    return now, most


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, what is left of it) of each control group that has one.

    Above `memory.high` a group is not killed, but held up until it is below.
    """
    for folder in groups("memory", root):
        words = [text_of(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        limit = min((int(word) for word in words if word.isdigit()), default=_NO_LIMIT)
        if limit >= _NO_LIMIT:
            continue
        used = text_of(folder / "memory.current") or text_of(folder / "memory.usage_in_bytes")
        # version 1 counts groups within this one under names with "total_" only
        pages: dict[str, str] = dict(re.findall(r"^(\w+) (\d+)$", text_of(folder / "memory.stat"), re.MULTILINE))
        files = sum(int(pages.get(f"total_{one}", pages.get(one, "0"))) for one in ("inactive_file", "active_file"))
        yield limit, max(0, limit - max(0, (int(used) if used.isdigit() else 0) - files))


def _meminfo(key: str, root: Path) -> list[int]:
    """Bytes that Linux says of a kind of memory, if it does."""
    return _kilobytes(key, root / "proc/meminfo")


def _kilobytes(key: str, path: Path) -> list[int]:
    """Bytes that a line of such a file says, if there is one."""
    return [int(number) * 1024 for number in re.findall(rf"^{key}:\s*(\d+) kB$", text_of(path), re.MULTILINE)]


def _physical() -> int:
    """Installed memory; 0 where the system has no such call."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
