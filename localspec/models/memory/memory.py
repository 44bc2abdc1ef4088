"""How much memory this machine has left: the system's word, and a container's limit where there is one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.cgroup import ROOT, memory, text_of

_MEMINFO = Path("/proc/meminfo")


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


def ram(meminfo: Path = _MEMINFO, cgroup: Path = ROOT) -> Place:
    """The CPU's memory.

    Free is what Linux says is available, or all there is on systems that do not say, and at most what the container
    this runs in may still take.
    """
    total = _physical()
    free = total
    for line in text_of(meminfo).splitlines():
        key, _, rest = line.partition(":")
        number = rest.split()[0] if rest.split() else ""
        if number.isdigit():
            total = int(number) * 1024 if key == "MemTotal" else total
            free = int(number) * 1024 if key == "MemAvailable" else free
    room = memory(cgroup)
    if room is not None:
        limit, left = room
        total, free = min(total or limit, limit), min(free or left, left)
    return Place("CPU", "cpu", free, total)


def _physical() -> int:
    """Installed memory; 0 where the system has no such call."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
