"""Facts about this machine's passes that are kept (`localspec.kept`): what their bits depend on, what our library
measured that the machine could do at most, and whether our kernels keep their promise in this build, on this CPU."""

from __future__ import annotations

import contextlib
import logging
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from localspec import kept, paths
from localspec.gguf.formats import PACKED, TYPE_NUMBERS
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.kept import Facts
from localspec.llama.exact import wide
from localspec.llama.exact.wide import Kernels
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.machine import default_threads, text_of

_FORMAT = 5
_NVIDIA_VERSION = Path("/proc/driver/nvidia/version")  # where NVIDIA's driver names itself, on Linux


def of_file(path: Path) -> list[str | int]:
    """Path, size and time of change. A missing file is no error here; `Model.load` says it better."""
    size, changed = 0, 0
    with contextlib.suppress(OSError):
        status = path.stat()
        size, changed = status.st_size, status.st_mtime_ns
    return [str(paths.real(path)), size, changed]


def kernels_id(kernels: Kernels) -> list[str | int]:
    """What names kernels on disk: another build of ours may compute other bits."""
    return ["wide", *wide.identity(), wide.tiles_in_use()] if kernels == "wide" else [kernels]


def shared_facts(
    path: Path, settings: ContextSettings, gpu_layers: int, device: str | None, spread: Spread = BY_LAYER
) -> dict[str, Any]:
    """What every key holds: the file, where it runs, on how many threads of which machine, and with which build."""
    rollback = {"rollback": settings.rollback} if settings.rollback else {}
    # The release of the system, which most drivers of GPUs come with, and NVIDIA's driver, which does not.
    driver = {"driver": [platform.release(), text_of(_NVIDIA_VERSION).partition("\n")[0]]} if gpu_layers else {}
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


def cpu_name() -> str:
    """The processor's name for people, such as "AMD EPYC 9R14"."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


_MEMORY_TRIES, _MEMORY_SECONDS = 3, 0.05
_INT8_TRIES, _INT8_SECONDS = 20, 0.005  # the best counts: on a busy machine a long try measures others too
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Limits:
    memory_rate: float  # bytes a second that all threads together read from memory
    int8_rate: float  # multiplications and additions of int8 a second, in registers
    when: float = 0.0  # seconds since 1970

    @property
    def of_today(self) -> bool:
        """Whether it was measured within a day: beside other work one is too low, and another may be better."""
        return abs(time.time() - self.when) < _DAY_SECONDS


def read_limits(threads: int) -> Limits | None:
    """What was measured on this CPU with so many threads; None = nothing yet."""

    def made(data: Any) -> Limits:
        found = Limits(float(data["memory_rate"]), float(data["int8_rate"]), float(data["when"]))
        if not (0.0 < found.memory_rate < math.inf and 0.0 < found.int8_rate < math.inf):
            raise ValueError("a rate is above 0")
        return found

    return kept.facts().read("limits", _key(threads), made)


def write_limits(threads: int, limits: Limits) -> None:
    kept.facts().write("limits", _key(threads), asdict(limits))


def _key(threads: int) -> list[Any]:
    return [wide.status().isa, cpu_name(), threads]


def measure_limits(threads: int, before: Limits | None = None) -> Limits | None:
    """Measures both for a moment; with an earlier result, the higher of each counts. None = no memory for it."""
    library = wide.library()
    memory = max(float(library.lsw_memory_rate(threads, _MEMORY_SECONDS)) for _ in range(_MEMORY_TRIES))
    int8 = 2 * max(float(library.lsw_int8_rate(0, threads, _INT8_SECONDS)) for _ in range(_INT8_TRIES))
    if not (memory and int8):
        return before
    if before is not None:
        memory, int8 = max(memory, before.memory_rate), max(int8, before.int8_rate)
    return Limits(memory, int8, time.time())


_LOG = logging.getLogger("localspec")
_CACHES: Final = ("F16", "BF16", "Q8_0")
_HEAD_SIZES: Final = (64, 96, 128, 256)
_WIDTH_DEPENDENT: Final = 4  # status: bits depend on the width (native/wide/localspec_wide.h)

Case = tuple[str, Callable[[], int]]  # a name in words, and a call that tries it


class SelfCheck:
    """Tries every type of weights and of caches on random numbers, some milliseconds each, once: a row has the same
    bits at every width. If a case fails, models are loaded with llama.cpp's kernels from then on. One for a process;
    used on one thread at a time."""

    def __init__(self, facts: Facts, threads: int = 0) -> None:
        """`facts`: where the result is kept; `threads` of the passes, 0 = as many as llama.cpp takes by itself."""
        self._facts, self._threads = facts, threads or default_threads()
        self._key: list[Any] = [*wide.identity(), cpu_name(), self._threads]
        self._left: list[Case] | None = None
        before = facts.read("kernels", self._key, lambda data: str(data["fault"]))
        self.fault = before or ""  # the case that failed, in words; "" = none has
        self.passed = before == ""  # whether every case has passed on this machine, now or in an earlier run

    @property
    def over(self) -> bool:
        return self.passed or bool(self.fault) or not wide.available()

    def step(self) -> None:
        """Tries the next case: about 10 ms, on a CPU without vector instructions up to 0.3 s."""
        if self.over:
            return
        self._left = _cases(self._threads) if self._left is None else self._left
        name, attempt = self._left.pop(0)
        if attempt() == _WIDTH_DEPENDENT:
            self.fault = name
            _LOG.warning(
                "localspec's kernels compute %s differently at different widths on this CPU. Models are loaded with "
                "llama.cpp's kernels from now on. Please report it.",
                name,
            )
        self.passed = not self._left and not self.fault
        if self.over:
            self._facts.write("kernels", self._key, {"fault": self.fault})

    def run(self, seconds: float) -> None:
        """Tries what is left, for so many seconds at most; the rest stays for `step`."""
        end = perf_counter() + seconds
        while not self.over and perf_counter() < end:
            self.step()


def _cases(threads: int) -> list[Case]:
    product, attention = wide.library().lsw_check_product, wide.library().lsw_check_attention
    products = [(f"products of {name} weights", partial(product, TYPE_NUMBERS[name], threads)) for name in PACKED]
    return products + [
        (f"attention over a {name} cache with heads of {size}", partial(attention, TYPE_NUMBERS[name], size, threads))
        for name in _CACHES
        for size in _HEAD_SIZES
    ]
