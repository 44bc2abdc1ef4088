"""The library built from native/wide/: loaded into the ggml that llama.cpp uses, and the switch that says who uses it;
and how a target can run: whose kernels compute its passes, and how keys and values are kept (docs/exactness.md,
"Same bytes").

Once loaded it is offered every model of the process. Off, what loads or is built on this thread is llama.cpp's alone; a
model that was loaded with the switch on keeps its matrix products there. A missing library, an unknown processor or
another llama.cpp is no error: `status` says why, and llama.cpp's own kernels serve.

llama.cpp has tiled kernels for K-quants: from eight rows of one matrix or expert on they use another arithmetic. An
environment variable turns them off, and llama.cpp reads it once in a process, at the first product that could be tiled.
So a process whose first model runs on our kernels leaves them off, and experts have the same bits at every width. What
the user has set stays.

And facts about this machine's passes that are kept (`localspec.kept`): what their bits depend on, what the machine can
do at most, and whether our kernels keep their promise in this build, on this CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import math
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

from localspec import kept, paths
from localspec.errors import LocalspecError
from localspec.gguf import PACKED, TYPE_NUMBERS
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.kept import FactStore
from localspec.llama.library import lib
from localspec.llama.library.contention import cpus
from localspec.llama.library.settings import CacheType, ContextSettings
from localspec.machine import default_threads, text_of
from localspec.native.library import declare, file_name, find_file

Kernels = Literal["wide", "repacked", "plain"]
"""Who computes passes on the CPU: "wide" packs the weights for our own library (native/wide); those that it does not
support are repacked. "repacked" is llama.cpp's `use_extra_bufts` without AMX: weights reordered for speed. "plain"
leaves them as they are in the file."""

KERNEL_WORDS: dict[Kernels, str] = {"wide": "wide kernels", "repacked": "repacked weights", "plain": "plain weights"}
LLAMA_KERNELS: tuple[Kernels, ...] = ("repacked", "plain")
ALL_KERNELS: tuple[Kernels, ...] = ("wide", *LLAMA_KERNELS)


@dataclass(frozen=True, slots=True)
class CacheFormat:
    name: str
    type_k: CacheType
    type_v: CacheType
    flash_attention: bool | Literal["auto"]

    def apply(self, settings: ContextSettings) -> ContextSettings:
        return replace(settings, type_k=self.type_k, type_v=self.type_v, flash_attention=self.flash_attention)


DEFAULT_CACHE = CacheFormat("F16 cache", "f16", "f16", "auto")
CACHE_NAMES = {
    "auto": DEFAULT_CACHE,
    "f16": DEFAULT_CACHE,
    "bf16": CacheFormat("F16 keys, BF16 values", "f16", "bf16", True),
    "q8_0": CacheFormat("Q8_0 cache", "q8_0", "q8_0", True),
    "unfused": CacheFormat("F16 cache, no flash attention", "f16", "f16", False),
}  # {name in `EngineSettings.cache`: format}


ABI_VERSION = 4
FILE_NAME = file_name("localspec_wide")
MOST_ROWS = 64  # most rows of a pass that decodes, unless a context says otherwise
DEVICE_NAME = "wide"  # name of our library's device in `lib.devices`

_I32, _I64, _F64, _PTR, _TEXT = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "lsw_abi_version": (_I32, []),
    "lsw_isa_name lsw_refusal": (_TEXT, []),
    "lsw_switch": (_I32, [_I32]),
    "lsw_steps lsw_newest_context": (_I64, []),
    "lsw_give_back": (_I64, [_I64, _I32, _I64, _I32]),
    "lsw_pack lsw_unpack": (_I32, [_I32, _I64, _I64, _PTR]),
    "lsw_product": (_I32, [_I32, _I64, _I64, _I64, _PTR, _PTR, _PTR, _I32, _I32]),
    "lsw_attention": (_I32, [_PTR, _I32, _I32]),
    "lsw_check_product": (_I32, [_I32, _I32]),
    "lsw_check_attention": (_I32, [_I32, _I64, _I32]),
    "lsw_memory_rate": (_F64, [_I32, _F64]),
    "lsw_int8_rate": (_F64, [_I32, _I32, _F64]),
}


@dataclass(frozen=True, slots=True)
class Status:
    available: bool
    isa: str  # "avx512", "avx2", "i8mm", "neon" or "scalar"; "" if not available
    reason: str  # one sentence, why not; "" if available


def status() -> Status:
    """Loads the library at the first call in the process; never raises for an absent one."""
    return _loaded()[0]


def available() -> bool:
    """Whether `set_switch(MOST_ROWS)` has any effect."""
    return status().available


def set_switch(rows: int) -> int:
    """Sets this thread's switch; returns what it was. Without the library it stays off. `rows`: 0 = off, which loads no
    library; else on, and the most rows of a pass for which products of large matrices that are not packed are its,
    too."""
    return _call("lsw_switch", rows, load=rows > 0)


@contextlib.contextmanager
def switched(rows: int) -> Iterator[None]:
    before = set_switch(rows)
    try:
        yield
    finally:
        set_switch(before)


@contextlib.contextmanager
def packing() -> Iterator[Callable[[], None]]:
    """Has this thread's switch on inside a `with`, and weights that load there packed by as many threads as have a CPU:
    after each matrix all wait for one that has none. What it yields asks again how many have one now."""
    openmp = library()
    wanted = int(openmp.omp_get_max_threads())
    try:
        with switched(MOST_ROWS):
            openmp.omp_set_num_threads(cpus.free(wanted))
            yield lambda: openmp.omp_set_num_threads(cpus.free(wanted, looks=1))
    finally:
        openmp.omp_set_num_threads(wanted)


def steps() -> int:
    """Products and attentions that the library has run in passes of this thread; 0 without it."""
    return _call("lsw_steps")


def newest_context() -> int:
    """Number of the context of llama.cpp that was made last on this thread; 0 = none since the library is loaded."""
    return _call("lsw_newest_context", load=False)


def give_back(context: int, slot: int, cell: int, turned: bool) -> int:
    """Bytes of a context's cache, from a cell of a slot on, that take no memory any more; they read as zeros. Not
    during a pass. `turned`: values do not lie by cell (no fused attention), and stay."""
    return _call("lsw_give_back", context, slot, cell, turned) if context else 0


@functools.cache
def identity() -> tuple[str, str]:
    """What names the kernels on disk: instruction set and a digest of the library's file; ("", "") without it."""
    path = find_library()
    if not available() or path is None:
        return "", ""
    return status().isa, hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def library() -> ctypes.CDLL:
    """The loaded library with its functions declared. Raises LocalspecError: why it is not available."""
    state, found = _loaded()
    if found is None:
        raise LocalspecError(state.reason)
    return found


def find_library() -> Path | None:
    return find_file("LOCALSPEC_WIDE_LIBRARY", FILE_NAME)


_lock = threading.Lock()


def _loaded() -> tuple[Status, ctypes.CDLL | None]:
    lib.api()
    with _lock:
        return _load()


def _call(name: str, *arguments: int, load: bool = True) -> int:
    """What a function of the library returns; 0 without it, and where it is not loaded yet and need not be."""
    library = _loaded()[1] if load or _load.cache_info().currsize else None
    return 0 if library is None else int(getattr(library, name)(*arguments))


@functools.cache
def _load() -> tuple[Status, ctypes.CDLL | None]:
    try:
        path = find_library()
        if path is None:
            raise LocalspecError(f"this installation has no {FILE_NAME}.")
        if not path.is_file():
            raise LocalspecError(f"there is no {path}.")
        opened, mark = ctypes.CDLL(str(path)), lib.log.mark()
        declare(opened, SIGNATURES)
        if opened.lsw_abi_version() != ABI_VERSION:
            raise LocalspecError(f"{path} has ABI {opened.lsw_abi_version()}, not {ABI_VERSION}.")
        if not lib.c_function("ggml_backend_load")(os.fsencode(paths.real(path))):
            raise LocalspecError(opened.lsw_refusal().decode() or lib.log.reason(mark) or f"llama.cpp refused {path}.")
    except (LocalspecError, OSError, AttributeError) as error:
        return Status(False, "", str(error)), None
    return Status(True, opened.lsw_isa_name().decode(), ""), opened


_LOG = logging.getLogger("localspec")


class StepWatch:
    """Of one context that is exact by construction (see `choice`)."""

    def __init__(self, expected: int) -> None:
        """`expected`: products and attentions of a pass that our library computes."""
        self._expected = expected
        self._counted: set[int] = set()
        self._before = 0

    def begin(self, rows: int) -> None:
        if rows not in self._counted:
            self._before = steps()

    def lacks(self, rows: int) -> bool:
        """Whether that pass, the first of its width, left some of them to another backend; says so once."""
        if rows in self._counted:
            return False
        self._counted.add(rows)
        ran = steps() - self._before
        if ran >= self._expected:
            return False
        _LOG.warning(
            "A pass of %d rows ran %d of %d products and attentions on localspec's kernels. "
            "Answers from now on are marked exact: no. Please report it.",
            rows,
            ran,
            self._expected,
        )
        return True


TILES_VARIABLE = "GGML_CPU_TILED_MM"
TILED_TYPES = re.compile(r"q[2-6]_K|iq[1-4]_(?!nl).*")  # ggml's names of the formats that have tiled kernels
_TILES_OFF = "0 (localspec)"  # the rest tells our child processes that no user set it

if os.environ.get(TILES_VARIABLE) == _TILES_OFF:
    del os.environ[TILES_VARIABLE]


def turn_off_tiles() -> None:
    """Turns llama.cpp's tiled kernels off for this process, unless a pass has run in it or the user has decided."""
    if not cpus.begun:
        os.environ.setdefault(TILES_VARIABLE, _TILES_OFF)


def tiles_in_use() -> bool:
    number = re.match(r"\s*[+-]?\d+", os.environ.get(TILES_VARIABLE, "1"))  # as C's atoi reads it
    return number is not None and int(number[0]) != 0


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
    return ["wide", *identity(), tiles_in_use()] if kernels == "wide" else [kernels]


def shared_facts(
    path: Path, settings: ContextSettings, gpu_layers: int, device: str | None, spread: Spread = BY_LAYER
) -> dict[str, Any]:
    """What every key holds: the file, where it runs, on how many threads of which machine, and with which build."""
    rollback = {"rollback": settings.rollback} if settings.rollback else {}
    # The release of the system, which most drivers of GPUs come with, and NVIDIA's driver, which does not.
    driver = {"driver": [platform.release(), text_of(_NVIDIA_VERSION).partition("\n")[0]]} if gpu_layers else {}
    # Without our own: whether it is there changes nothing about passes that do not use it.
    devices = [found for found in lib.devices() if found.name != DEVICE_NAME]
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
    return [status().isa, cpu_name(), threads]


def measure_limits(threads: int, before: Limits | None = None) -> Limits | None:
    """Measures both for a moment; with an earlier result, the higher of each counts. None = no memory for it."""
    memory_rate, int8_rate = library().lsw_memory_rate, library().lsw_int8_rate
    memory = max(float(memory_rate(threads, _MEMORY_SECONDS)) for _ in range(_MEMORY_TRIES))
    int8 = 2 * max(float(int8_rate(0, threads, _INT8_SECONDS)) for _ in range(_INT8_TRIES))
    if not (memory and int8):
        return before
    if before is not None:
        memory, int8 = max(memory, before.memory_rate), max(int8, before.int8_rate)
    return Limits(memory, int8, time.time())


_CACHES: Final = ("F16", "BF16", "Q8_0")
_HEAD_SIZES: Final = (64, 96, 128, 256)
_WIDTH_DEPENDENT: Final = 4  # status: bits depend on the width (native/wide/localspec_wide.h)

Case = tuple[str, Callable[[], int]]  # a name in words, and a call that tries it


class SelfCheck:
    """Tries every type of weights and of caches on random numbers, some milliseconds each, once: a row has the same
    bits at every width. If a case fails, models are loaded with llama.cpp's kernels from then on. One for a process;
    used on one thread at a time."""

    def __init__(self, facts: FactStore, threads: int = 0) -> None:
        """`facts`: where the result is kept; `threads` of the passes, 0 = as many as llama.cpp takes by itself."""
        self._facts, self._threads = facts, threads or default_threads()
        self._key: list[Any] = [*identity(), cpu_name(), self._threads]
        self._left: list[Case] | None = None
        before = facts.read("kernels", self._key, lambda data: str(data["fault"]))
        self.fault = before or ""  # the case that failed, in words; "" = none has
        self.passed = before == ""  # whether every case has passed on this machine, now or in an earlier run

    @property
    def over(self) -> bool:
        return self.passed or bool(self.fault) or not available()

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
    product, attention = library().lsw_check_product, library().lsw_check_attention
    products = [(f"products of {name} weights", partial(product, TYPE_NUMBERS[name], threads)) for name in PACKED]
    return products + [
        (f"attention over a {name} cache with heads of {size}", partial(attention, TYPE_NUMBERS[name], size, threads))
        for name in _CACHES
        for size in _HEAD_SIZES
    ]
