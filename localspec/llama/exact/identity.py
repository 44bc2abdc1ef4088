"""What the bits of a model's passes depend on: facts are kept under it (`localspec.kept`)."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.llama.exact import exactness, wide
from localspec.llama.exact.wide import Kernels
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.machine import text_of
from localspec.machine.cpus import default_threads

_FORMAT = 5
_NVIDIA_VERSION = Path("/proc/driver/nvidia/version")
"""Where NVIDIA's driver names itself, on Linux."""


def of_file(path: Path) -> list[str | int]:
    """Path, size and time of change. A missing file is no error here; `Model.load` says it better."""
    size, changed = 0, 0
    with contextlib.suppress(OSError):
        status = path.stat()
        size, changed = status.st_size, status.st_mtime_ns
    return [str(paths.real(path)), size, changed]


def kernels_id(kernels: Kernels) -> list[str | int]:
    """What names kernels on disk: another build of ours may compute other bits."""
    return ["wide", *wide.identity(), exactness.in_use()] if kernels == "wide" else [kernels]


def shared_facts(
    path: Path, settings: ContextSettings, gpu_layers: int, device: str | None, spread: Spread = BY_LAYER
) -> dict[str, Any]:
    """What every key holds: the file, where it runs, on how many threads of which machine, and with which build."""
    rollback = {"rollback": settings.rollback} if settings.rollback else {}
    driver = {"driver": _driver()} if gpu_layers else {}
    # Without our own: whether it is there changes nothing about passes that do not use it.
    devices = [found for found in lib.devices() if found.name != wide.DEVICE_NAME]
    return {
        **rollback,
        **driver,
        "format": _FORMAT,
        "model": of_file(path),
        "weights": [gpu_layers, device, str(spread)],
        "threads": settings.threads or default_threads(),
        "machine": [cpu_name(), [found.name + found.description for found in devices]],
        "build": lib.build_id(),
    }


def _driver() -> list[str]:
    """The release of the system, which most drivers of GPUs come with, and NVIDIA's driver, which does not."""
    return [platform.release(), text_of(_NVIDIA_VERSION).partition("\n")[0]]


def cpu_name() -> str:
    """The processor's name for people, such as "AMD EPYC 9R14"."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
