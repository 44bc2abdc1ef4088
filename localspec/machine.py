"""What this machine is, and what of it this process may use: memory, CPUs, files in memory.

What only Linux says stands in files below a root, which tests plant. Elsewhere there are none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path("/")


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def groups(controller: str, root: Path) -> list[Path]:
    """Where Linux's limits of a container or a service may stand: this process's control groups and all above them, of
    either version. `controller` is what limits, such as "cpu"."""
    top = root / "sys/fs/cgroup"
    found = dict.fromkeys((top, top / controller))
    for line in text_of(root / "proc/self/cgroup").splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        group = path.strip("/").split("/")
        if ".." in group or (names and controller not in names.split(",")):
            continue
        for mount in (top / names, top / controller) if names else (top,):
            found |= dict.fromkeys(mount.joinpath(*group[:depth]) for depth in range(len(group) + 1))
    return list(found)


def allowed() -> Collection[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return range(os.cpu_count() or 1)


def default_threads(root: Path = ROOT) -> int:
    """Physical cores that this process may use, as far as it may have all of their time; at least 1."""
    topology = root / "sys/devices/system/cpu"
    found = [1.0 * len({text_of(topology / f"cpu{cpu}/topology/thread_siblings_list") or cpu for cpu in allowed()})]
    for folder in groups("cpu", root):  # each may limit how many CPUs' worth of time there is
        old = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = text_of(folder / "cpu.max").split() or [text_of(folder / name) for name in old]
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            found.append(int(words[0]) / int(words[1]))
    return max(1, int(min(found)))


def load() -> float | None:
    """Programs that want to run on this machine, mean of the last minute; None where the system does not say."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def others(processes: Sequence[str] = ("self",), root: Path = ROOT) -> int:
    """Threads of other programs than these (names in /proc) that run or want to, now; 0 = the system does not say."""
    if (running := re.search(r"^procs_running (\d+)", text_of(root / "proc/stat"), re.MULTILINE)) is None:
        return 0
    tasks = (task for process in processes for task in (root / "proc" / process / "task").glob("*/stat"))
    own = sum(text_of(task).rpartition(")")[2].startswith(" R") for task in tasks)
    return max(0, int(running[1]) - own)


def on_battery(root: Path = ROOT) -> bool:
    """Whether the machine runs on its battery, as far as Linux says so. A desktop has plugs that are not used (USB-C),
    and batteries of other devices (a mouse); where no plug is listed, the battery's own word counts."""
    supplies = list((root / "sys/class/power_supply").glob("*"))
    plugs = [online for one in supplies if (online := text_of(one / "online"))]
    own = [one for one in supplies if text_of(one / "type") == "Battery" and text_of(one / "scope") != "Device"]
    drained = any(text_of(one / "status") == "Discharging" for one in own)
    return "1" not in plugs and bool(own) and (bool(plugs) or drained)


def mapped_files(root: Path = ROOT, process: int | str = "self") -> list[str]:
    """Files that are mapped into a process, deleted ones included, in order of their addresses."""
    return list(dict.fromkeys(os.fsdecode(name).removesuffix(" (deleted)") for _, _, name in _mapped(root, process)))


def holder(file: Path, process: int, root: Path = ROOT) -> int:
    """Which process has a file mapped: this one, or one that it has started; 0 = none, or the system does not say."""
    tasks = (root / "proc" / str(process) / "task").glob("*/children")
    started = [int(child) for task in tasks for child in text_of(task).split()]
    return next((one for one in (process, *started) if os.path.realpath(file) in mapped_files(root, one)), 0)


def give_back(files: Iterable[Path], root: Path = ROOT) -> int:
    """Tells the system that no page of these files is needed now where this process has mapped them; bytes of address
    space that were named. llama.cpp maps a model's file and copies what our kernels, its own repacked ones or a GPU
    compute with. The copied pages stay in the process's memory until it ends: 0.8 GB of a model of 1.1. Given back,
    they are still in the system's file cache, and one that is read all the same comes back in microseconds."""
    wanted = {os.fsencode(os.path.realpath(file)).replace(b"\n", rb"\012") for file in files}
    total = 0
    for addresses, rights, name in _mapped(root):
        if name in wanted and rights.startswith(b"r--"):
            first, last = (int(part, 16) for part in addresses.split(b"-"))
            advise = ctypes.CDLL(None).madvise
            advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            if advise(first, last - first, mmap.MADV_DONTNEED) == 0:
                total += last - first
    return total


def _mapped(root: Path, process: int | str = "self") -> Iterator[tuple[bytes, bytes, bytes]]:
    """(addresses, rights, name) of each part of a file, as Linux writes them."""
    file = root / "proc" / str(process) / "maps"
    try:
        lines = file.read_bytes().split(b"\n")  # splitlines would cut a name at a carriage return
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=5)  # addresses, rights, offset, device, inode, name
        if len(fields) == 6 and fields[5].startswith(b"/"):
            yield fields[0], fields[1], fields[5]


_NO_LIMIT = 1 << 60  # bytes from which on a limit is version 1's way to say that there is none


@dataclass(frozen=True, slots=True)
class Place:
    name: str  # as llama.cpp calls it: "CPU", "CUDA0", "Metal"
    kind: Literal["cpu", "gpu"]
    free_bytes: int  # what can be had without swapping; 0 = unknown
    total_bytes: int = 0
    description: str = ""  # what llama.cpp says of a GPU, such as "NVIDIA GeForce RTX 4090"
    unified: bool = False  # whether a GPU's memory is the CPU's, so that what is put there is missing here
    part: float = 0.0  # of the layers on GPUs, in any unit; 0 = as its free memory is to that of the others


def total_ram(places: Sequence[Place]) -> int:
    """Bytes of the CPU's memory among these places; 0 = unknown."""
    return next((place.total_bytes for place in places if place.kind == "cpu"), 0)


def ram(root: Path = ROOT) -> Place:
    """The CPU's memory, at most what the lowest limit of a control group leaves of it. Where the system does not say
    what is free (anywhere but on Linux), all of it is."""
    there = _kilobytes("MemTotal", root / "proc/meminfo")
    if not there:
        with suppress(AttributeError, OSError, ValueError):  # where the system has no such call
            there = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    total = min([*filter(None, there), *(limit for limit, _ in _limits(root))], default=0)
    free = available_bytes(root)
    return Place("CPU", "cpu", total if free is None else max(1, free), total)


def available_bytes(root: Path = ROOT) -> int | None:
    """Memory that this process may still take without swapping; None where that is unknown (anywhere but on Linux): the
    least of Linux's `MemAvailable` and, for each control group from this process's own up to the root, the limit
    less what is used and cannot be dropped. Pages of files can be, `active_file` too: `MemAvailable` counts both
    lists (si_mem_available in mm/show_mem.c), and weights that were read twice are on the active one."""
    return min([*_kilobytes("MemAvailable", root / "proc/meminfo"), *(left for _, left in _limits(root))], default=None)


def taken(process: int | str = "self", root: Path = ROOT) -> tuple[int, int]:
    """Bytes of memory that a process takes now, and took at most; 0 = unknown (anywhere but on Linux)."""
    status = root / "proc" / str(process) / "status"
    now, most = (sum(_kilobytes(key, status)) for key in ("VmRSS", "VmHWM"))
    return now, most


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, what is left) of each control group that has one. Above `memory.high` a group is held up, not killed."""
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


def _kilobytes(key: str, path: Path) -> list[int]:
    """Bytes that a line of such a file of Linux says, if there is one."""
    return [int(number) * 1024 for number in re.findall(rf"^{key}:\s*(\d+) kB$", text_of(path), re.MULTILINE)]
