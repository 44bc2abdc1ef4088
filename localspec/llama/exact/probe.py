"""Which widths an examination found to be exact, and where that is kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.llama.exact import tiles, wide
from localspec.llama.exact.configuration import Kernels
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings

_FORMAT = 5
_TREES_VERSION = 2
"""Version of the trees that `widths` examines: results of another version do not count."""
_NVIDIA_VERSION = Path("/proc/driver/nvidia/version")
"""Where NVIDIA's driver names itself, on Linux."""
DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions of reading a file that is missing or was not written by localspec."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Facts about one (model, machine, settings)."""

    by_length: dict[int, tuple[int, ...]] | None = None
    """{context length: widths whose rows had the bits of one-row passes there and at the lengths examined before};
    None = not examined."""
    exact: frozenset[int] | None = None
    """Widths the engine may use when it must be exact: 1, 2, ... up to the first that failed anywhere. A pass may
    compute fewer rows of logits than it has rows, so no width is exact unless all smaller ones are. None = unknown."""

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        lengths = self.by_length
        return {
            "by_length": None if lengths is None else {str(n): list(widths) for n, widths in lengths.items()},
            "exact": None if self.exact is None else sorted(self.exact),
        }

    @classmethod
    def from_json(cls, data: Any) -> Probe:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError, ArithmeticError: not what `to_json` makes.
        """
        lengths, exact = data["by_length"], data["exact"]
        probe = cls(
            None if lengths is None else {int(n): tuple(int(w) for w in widths) for n, widths in lengths.items()},
            None if exact is None else frozenset(int(width) for width in exact),
        )
        if probe.exact is not None and 1 not in probe.exact:
            raise ValueError("width 1 is always exact")
        return probe


def cache_key(
    path: Path,
    settings: ContextSettings,
    widest: int,
    *,
    kernels: Kernels = "repacked",
    gpu_layers: int = 0,
    device: str | None = None,
    spread: Spread = BY_LAYER,
) -> str:
    """Name of a probe's file: every fact that can change bits, hashed."""
    facts = {
        **shared_facts(path, settings, gpu_layers, device, spread),
        "kernels": kernels_id(kernels),
        "cache": [settings.type_k, settings.type_v, str(settings.flash_attention), settings.offload_kv],
        "shape": [settings.n_ctx, settings.n_slots, settings.max_leaves, settings.grid, widest],
    }
    if settings.max_leaves > 1:
        facts["trees"] = _TREES_VERSION
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def kernels_id(kernels: Kernels) -> list[str | int]:
    """What names kernels on disk: another build of ours may compute other bits."""
    return ["wide", *wide.identity(), tiles.in_use()] if kernels == "wide" else [kernels]


def shared_facts(
    path: Path, settings: ContextSettings, gpu_layers: int, device: str | None, spread: Spread = BY_LAYER
) -> dict[str, Any]:
    """What every key holds: the file, where it runs, on how many threads of which machine, and with which build.

    A missing file is no error here; `Model.load` says it better.
    """
    size, changed = 0, 0
    with contextlib.suppress(OSError):
        status = path.stat()
        size, changed = status.st_size, status.st_mtime_ns
    rollback = {"rollback": settings.rollback} if settings.rollback else {}
    driver = {"driver": _driver()} if gpu_layers else {}
    return {
        **rollback,
        **driver,
        "format": _FORMAT,
        "model": [str(paths.real(path)), size, changed],
        "weights": [gpu_layers, device, str(spread)],
        "threads": settings.threads or lib.default_threads(),
        "machine": [cpu_name(), [found.name + found.description for found in _devices()]],
        "build": lib.build_id(),
    }


def _driver() -> list[str]:
    """The release of the system, which most drivers of GPUs come with, and NVIDIA's driver, which does not."""
    nvidia = ""
    with contextlib.suppress(OSError):
        nvidia = _NVIDIA_VERSION.read_text().partition("\n")[0]
    return [platform.release(), nvidia]


def _devices() -> list[lib.Device]:
    """Without ours: whether it is there changes nothing about passes that do not use it."""
    return [found for found in lib.devices() if found.name != wide.DEVICE_NAME]


def cpu_name() -> str:
    """The processor's name for people, such as "AMD EPYC 9R14"."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def load(directory: Path | None, key: str) -> Probe | None:
    """A stored probe; None if there is none or it is damaged."""
    if directory is None:
        return None
    try:
        return Probe.from_json(json.loads((directory / f"{key}.json").read_text("utf-8")))
    except DAMAGE:
        return None


def store(directory: Path | None, key: str, probe: Probe) -> None:
    """Writes a probe, whole or not at all; a full or read-only disk is no error."""
    write(directory, key, probe.to_json())


def write(directory: Path | None, key: str, data: dict[str, Any]) -> None:
    """Writes a JSON file, whole or not at all; a full or read-only disk is no error."""
    if directory is None:
        return
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=directory, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file)
            os.replace(name, directory / f"{key}.json")
        except BaseException:
            os.unlink(name)
            raise
