"""OpenMP runtimes in this process: each has threads of its own, and two of them compete for the cores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from localspec.checks.finding import Finding

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
