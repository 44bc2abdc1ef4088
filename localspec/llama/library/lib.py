"""The one door to llama.cpp: version pin, start-up, captured log, return codes as our errors, facts about the build.

Nothing is imported until `api()` is called, so `import localspec` stays fast and works without bindings.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from localspec.errors import Cancelled, DecodeError, DeviceError, LocalspecError
from localspec.llama.library import bindings

GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # ggml's numbers of the types a KV cache may have

FLASH_ATTENTION = {"auto": -1, False: 0, True: 1}

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
"""llama.cpp's numbers of how several GPUs share a model (enum llama_split_mode)."""

_DEBUG_LEVEL = 1
_ERROR_LEVEL = 4
_CONTINUE_LEVEL = 5


class Log:
    """The last lines llama.cpp logged, but for those of debugging, with ggml's level (4 = error). Thread-safe."""

    def __init__(self, capacity: int = 500) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._open = False  # the last line has no newline yet
        self._debugs = False  # whether what came last was for debugging: hundreds of lines for each context
        self._total = 0
        self.echo: Callable[[str], None] | None = None
        """Gets every text that is held, too, at once: what is said right before llama.cpp ends the process."""

    def add(self, level: int, text: str) -> None:
        """Takes what llama.cpp hands its log callback: whole lines, several, or pieces of one."""
        with self._lock:
            self._debugs = level == _DEBUG_LEVEL or (level == _CONTINUE_LEVEL and self._debugs)
            if self._debugs:
                return
            if self.echo is not None:
                self.echo(text)
            for piece in text.splitlines(keepends=True):
                if self._lines and (self._open or level == _CONTINUE_LEVEL):
                    old_level, old = self._lines[-1]
                    self._lines[-1] = (old_level, (old + piece)[:2000])
                else:
                    self._lines.append((level, piece[:2000]))
                    self._total += 1
                self._open = not piece.endswith("\n")

    @property
    def total(self) -> int:
        """Number of lines so far: a position to hand to `since`."""
        return self._total

    def mark(self) -> int:
        """`total`. What follows comes here, even if another import of llama_cpp took the log."""
        for capture in _captures:
            capture()
        return self._total

    def since(self, mark: int) -> list[tuple[int, str]]:
        """(level, line) logged after `mark`, oldest first, as far as they are still held."""
        with self._lock:
            count = min(self._total - mark, len(self._lines))
            recent = list(self._lines)[len(self._lines) - count :]
        return [(level, line.rstrip()) for level, line in recent]

    def lines(self) -> list[str]:
        return [line for _, line in self.since(0)]

    def reason(self, mark: int) -> str:
        """The first error logged after `mark` in words (function names stripped), or ""."""
        for level, line in self.since(mark):
            if level == _ERROR_LEVEL:
                words = line.split(": ")
                while len(words) > 1 and (words[0].replace("_", "a").isalnum() or words[0].startswith("error loading")):
                    words = words[1:]
                return ": ".join(words).strip().rstrip(".")
        return ""


log = Log()
_captures: list[Callable[[], object]] = []
"""Has llama.cpp call `_on_log`: one entry, once it is loaded. It holds the callback that C code points to."""


def _on_log(level: int, text: bytes | None, _: object) -> None:
    if text:
        log.add(level, text.decode("utf-8", "replace"))


@functools.cache
def api() -> Any:
    """The ctypes module of llama.cpp's bindings, checked and started once, its log captured. Raises LocalspecError:
    they are missing, do not load, or are not of the pinned version."""
    found = bindings.installed()
    try:
        module = found.load("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        reason = f"{found.distribution} does not load: {error}."
        raise LocalspecError(reason, bindings.advice(found.distribution, again=True)) from error
    callback = module.llama_log_callback(_on_log)
    _captures[:] = [functools.partial(module.llama_log_set, callback, ctypes.c_void_p(0))]
    log.mark()
    _load_backends(module)
    module.llama_backend_init()
    return module


_backends: list[str] = []  # file names of the modules that `_load_backends` had llama.cpp load


def _load_backends(module: Any) -> None:
    """Loads the backends of a build whose backends are modules (GGML_BACKEND_DL) from the folder of its own libraries.

    Without this call `llama_backend_init` would look for them in the program's folder and in the current directory,
    where anyone can plant one. A build with backends linked in has registered them by now, and is left alone.

    Raises:
        LocalspecError: the folder has no module that this CPU can run, or the build lacks ggml's functions.
    """
    count = _function(module, "ggml_backend_reg_count", ctypes.c_size_t)
    if count():
        return
    folder, mark = Path(module._lib._name).absolute().parent, log.mark()
    _function(module, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)(os.fsencode(folder))
    if not count():
        raise LocalspecError(
            f"llama.cpp has no backend: {folder} has no module that this CPU can run.",
            bindings.advice(bindings.installed().distribution, again=True),
        )
    found = (re.search(r"load_backend: loaded .+ backend from (.+)", line) for _, line in log.since(mark))
    _backends[:] = [Path(one[1]).name for one in found if one]


def backends() -> tuple[str, ...]:
    """File names of the modules that llama.cpp computes with, such as "libggml-cpu-zen4.so"; () = linked in."""
    api()
    return tuple(_backends)


@functools.cache
def extension() -> Any:
    """The bindings' ctypes module of what llama.cpp declares outside its C interface."""
    api()
    return bindings.installed().load("llama_cpp_ext")


@functools.cache
def c_function(name: str, restype: Any, *argtypes: Any) -> Any:
    """A function of libllama or of the ggml it is linked with that the bindings do not declare."""
    return _function(api(), name, restype, *argtypes)


def _function(module: Any, name: str, restype: Any, *argtypes: Any) -> Any:
    """`c_function` of a binding that is not started yet."""
    library = ctypes.CDLL(module._lib._name)  # its own handle: argtypes are not shared
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise LocalspecError(f"this llama.cpp does not export {name}.") from error
    function.restype = restype
    function.argtypes = list(argtypes)
    return function


@dataclass(frozen=True, slots=True)
class Device:
    name: str  # as llama.cpp calls it: "CPU", "CUDA0", "Metal"
    description: str
    kind: str  # "cpu", "gpu", "igpu", "accel" or "meta"
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Info:
    """What `localspec doctor` says about llama.cpp."""

    bindings: bindings.Bindings
    version: str  # llama.cpp's own
    system: str  # CPU features and options llama.cpp was compiled with, as it prints them
    gpu_offload: bool
    devices: tuple[Device, ...]


def info() -> Info:
    module = api()
    return Info(
        bindings.installed(),
        module.llama_version().decode(),
        module.llama_print_system_info().decode().strip(),
        bool(module.llama_supports_gpu_offload()),
        tuple(devices()),
    )


def multiplies_with_amx() -> bool:
    """Whether this build of llama.cpp has AMX kernels, which are the first of its extra buffers.

    Compiled by GCC 12 they crash (general protection fault at `ldtilecfg`, ggml-org/llama.cpp#20824): that compiler's
    `_tile_loadconfig` names 8 of the configuration's 64 bytes, so it drops the stores of the others.
    """
    return b"AMX_INT8 = 1" in api().llama_print_system_info()


_KINDS = ("cpu", "gpu", "igpu", "accel", "meta")


def devices() -> list[Device]:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    name = c_function("ggml_backend_dev_name", text, pointer)
    description = c_function("ggml_backend_dev_description", text, pointer)
    kind = c_function("ggml_backend_dev_type", ctypes.c_int, pointer)
    sizes = ctypes.POINTER(ctypes.c_size_t)
    memory = c_function("ggml_backend_dev_memory", None, pointer, sizes, sizes)
    found = []
    for handle in device_handles():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, free, total)
        number = kind(handle)
        word = _KINDS[number] if 0 <= number < len(_KINDS) else str(number)
        found.append(Device(name(handle).decode(), description(handle).decode(), word, free.value, total.value))
    return found


def device_handles() -> list[int]:
    count = c_function("ggml_backend_dev_count", ctypes.c_size_t)()
    get = c_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [get(index) for index in range(count)]


def raise_for_code(code: int, mark: int) -> NoReturn:
    """Turns a non-zero return code of `llama_decode` into our error: Cancelled (2, the abort callback), DeviceError
    (-3), else DecodeError, with llama.cpp's own reason. `mark` is the log position before the call."""
    if code == 2:
        raise Cancelled("Stopped.")
    what = {
        1: "there is no room in its cache for the pass",
        -1: "it refused the batch",
        -2: "it could not allocate memory for the pass",
        -3: "the computation failed",
    }.get(code, f"it returned {code}")
    reason = log.reason(mark)
    kind = DeviceError if code == -3 else DecodeError
    raise kind(f"llama.cpp could not evaluate a pass: {what}{f' ({reason})' if reason else ''}.")


def pointer_value(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def bytes_pointer(array: Any) -> Any:
    """A uint8_t * to the data of a numpy array, which it keeps alive."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


@functools.cache
def build_id() -> str:
    """Names the llama.cpp in use: package, version, compile options, the library file itself, and its modules."""
    status = Path(api()._lib._name).stat()
    found = info()
    words = (found.bindings.version, found.version, found.system, status.st_size, status.st_mtime_ns, *backends())
    return " ".join(str(word) for word in words)


def cache_bytes(mark: int) -> int:
    """Size of the KV caches that llama.cpp reported making after log position `mark` (to 0.01 MiB)."""
    sizes = (re.search(r"KV buffer size = *([\d.]+) MiB", line) for _, line in log.since(mark))
    return int(sum(float(found[1]) for found in sizes if found) * 1024 * 1024)
