"""Files that are mapped into a process: libraries, and models. Linux only: elsewhere none is known.

llama.cpp maps a model's file and copies what our kernels, its own repacked ones or a GPU compute with. The copied pages
stay in the process's memory until it ends: 0.8 GB of a model of 1.1. Given back, they are still in the system's file
cache, and a page that is read all the same (a token's embedding, the rest of a model that loads) comes back in
microseconds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from localspec.machine import ROOT, text_of


def files(root: Path = ROOT, process: int | str = "self") -> list[str]:
    """Paths of the files, deleted ones included, in order of their addresses."""
    return list(dict.fromkeys(os.fsdecode(name).removesuffix(" (deleted)") for _, _, name in _mapped(root, process)))


def holder(file: Path, process: int, root: Path = ROOT) -> int:
    """Which process has a file mapped: this one, or one that it has started; 0 = none, or the system does not say."""
    tasks = (root / "proc" / str(process) / "task").glob("*/children")
    started = [int(child) for task in tasks for child in text_of(task).split()]
    return next((one for one in (process, *started) if os.path.realpath(file) in files(root, one)), 0)


def give_back(files: Iterable[Path], root: Path = ROOT) -> int:
    """Tells the system that no page of these files is needed now, wherever this process has mapped them.

    Returns:
        bytes of address space that were named; 0 where nothing is mapped or the system does not say.
    """
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
