"""What on this machine slows every model: other programs, little memory, a battery, a lazy clock, two OpenMPs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localspec.checks.finding import Finding
from localspec.models.memory.memory import Place, ram

_SYSTEM = Path("/sys")
_CROWDED_LOAD_PER_CPU = 1.5
"""Programs that want to run per CPU, from which on ours waits noticeably."""
_TIGHT_BYTES = 512 << 20


def examine_machine_state(
    model_bytes: int = 0, system: Path = _SYSTEM, memory: Place | None = None, load: float | None = None
) -> Iterator[Finding]:
    """Load, memory, power: what can be seen now. What the system does not tell is left out.

    Args:
        model_bytes: size of the files in use; 0 = unknown.
        system: where the kernel's files are.
        memory: None = as the system says now.
        load: programs that want to run, mean of the last minute; None = as the system says now.
    """
    yield from _load(_load_average() if load is None else load)
    yield _memory(ram() if memory is None else memory, model_bytes)
    yield from _power(system)


def _load_average() -> float | None:
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _load(load: float | None) -> Iterator[Finding]:
    if load is None:
        return
    cpus = os.cpu_count() or 1
    value = f"{load:.1f} programs want to run on {cpus} CPUs (mean of the last minute, this one included)"
    crowded = load > _CROWDED_LOAD_PER_CPU * cpus
    yield Finding("load", value, "Other programs take the CPUs; end them, or use fewer threads." if crowded else "")


def _memory(memory: Place, model_bytes: int) -> Finding:
    free, total = memory.free_bytes, memory.total_bytes
    value = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if model_bytes:
        value += f", the model's files have {model_bytes / 2**30:.2f} GiB"
    if total and model_bytes > total:
        return Finding(
            "memory",
            value,
            "The model is larger than memory, so weights are read from the disk again and again; take a smaller one.",
            "localspec search MODEL",
        )
    tight = bool(free) and free < _TIGHT_BYTES
    return Finding("memory", value, "Little memory is left; close programs or use a shorter context." if tight else "")


def _power(system: Path) -> Iterator[Finding]:
    batteries = sorted((system / "class/power_supply").glob("*/status"))
    if any(_text(status) == "Discharging" and _is_battery(status.parent) for status in batteries):
        yield Finding("power", "on battery", "Laptops compute slower on battery; plug it in.")
    cpu = system / "devices/system/cpu/cpu0/cpufreq"
    governor, driver = _text(cpu / "scaling_governor"), _text(cpu / "scaling_driver")
    if governor:
        # under these drivers "powersave" is the usual one and does not hold the clock down
        lazy = governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp")
        yield Finding(
            "clock",
            f"governor {governor}" + (f" ({driver})" if driver else ""),
            "The CPUs are kept at their lowest clock." if lazy else "",
            "sudo cpupower frequency-set -g performance" if lazy else "",
        )


def _is_battery(folder: Path) -> bool:
    return _text(folder / "type") == "Battery" and _text(folder / "scope") != "Device"


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


# OpenMP runtimes in this process: each has threads of its own, and two of them compete for the cores.

_MAPS = Path("/proc/self/maps")
_RUNTIME = re.compile(r"lib(gomp|omp|iomp)\d*[-.].*")
"""File names of GNU's, LLVM's and Intel's runtime; wheels put a hash after the name."""


def runtimes(maps: Path = _MAPS) -> list[str]:
    """Files of the OpenMP runtimes that are loaded, sorted; none where the system does not tell (only Linux does).

    Args:
        maps: what the kernel says of a process's memory.
    """
    try:
        lines = os.fsdecode(maps.read_bytes()).split("\n")  # splitlines would cut names at rare separators
    except OSError:
        return []
    files = {line.split(maxsplit=5)[5].removesuffix(" (deleted)") for line in lines if line.count("/")}
    return sorted(file for file in files if _RUNTIME.fullmatch(Path(file).name))


def examine_openmp(maps: Path = _MAPS) -> Iterator[Finding]:
    """Which OpenMP runtime is loaded, with advice if there are several; nothing where none is known.

    Args:
        maps: what the kernel says of a process's memory.
    """
    found = runtimes(maps)
    if not found:
        return
    advice = ""
    if len(found) > 1:
        advice = (
            f"{len(found)} OpenMP runtimes in one process make decoding two to three times slower; "
            "reinstall localspec and localspec-llama (or llama-cpp-python) so that both use the same one."
        )
    yield Finding("OpenMP", ", ".join(found), advice)
