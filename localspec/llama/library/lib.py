"""The one door to llama.cpp: version pin, start-up, captured log, return codes as our errors, facts about the build;
and what its bindings do not declare, as the pinned release lays it out (`packaging/port` compares it with headers).

llama-cpp-python serves if it is installed in the version this package is written for; it may be compiled for a GPU. The
release wheels bring localspec-llama: the same bindings and libraries under names of its own (packaging/llama). Nothing
is imported until `api()` is called, so `import localspec` stays fast and works without bindings.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError

PINNED = "0.3.36"  # the version of llama-cpp-python whose struct layouts and behaviour this package is written for
_DISTRIBUTIONS = {"llama-cpp-python": "llama_cpp", "localspec-llama": "localspec_llama"}
"""What serves, best first, and the package each one installs."""
GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # ggml's numbers of the types a KV cache may have
FLASH_ATTENTION = {"auto": -1, False: 0, True: 1}
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
"""llama.cpp's numbers of how several GPUs share a model (enum llama_split_mode)."""
_DEBUG_LEVEL, _ERROR_LEVEL, _CONTINUE_LEVEL = 1, 4, 5
_KINDS = ("cpu", "gpu", "igpu", "accel", "meta")
_POINTER, _TEXT, _SIZE, _SIZES = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
_INT, _I64, _U32, _BOOL = ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_bool


@dataclass(frozen=True, slots=True)
class Bindings:
    distribution: str  # as pip calls it
    version: str
    unused: str = ""  # a distribution of another version that was passed over, with it; "" = there is none

    @property
    def package(self) -> str:
        return _DISTRIBUTIONS[self.distribution]

    def load(self, name: str) -> Any:
        """The package's module of that name, without what else its __init__.py imports: that takes four times as long.
        Importing the package itself works before and afterwards, and shares this module. Raises ImportError, OSError,
        RuntimeError: it is missing, or its library does not load."""
        package = self.package
        if package in sys.modules:
            return importlib.import_module(f"{package}.{name}")
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ImportError(f"there is no module {package}")
        sys.modules[package] = importlib.util.module_from_spec(spec)  # not executed
        try:
            return importlib.import_module(f"{package}.{name}")
        finally:
            del sys.modules[package]


def advice(distribution: str = "llama-cpp-python", again: bool = False) -> str:
    """What installs a distribution in the right version, or once more."""
    return f"Run: pip install {'--force-reinstall --no-deps ' if again else ''}{distribution}=={PINNED}"


@functools.cache
def installed() -> Bindings:
    """The bindings that serve. Raises LocalspecError: there are none of the right version."""
    others: list[str] = []
    for distribution in _DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version.partition(".post")[0] == PINNED:
            return Bindings(distribution, version, ", ".join(others))
        others.append(f"{distribution} {version}")
    if others:
        raise LocalspecError(f"{' and '.join(others)} is installed, but localspec needs {PINNED}.", advice())
    raise LocalspecError("llama-cpp-python is not installed.", advice())


class GgmlTensor(ctypes.Structure):
    """The start of a ggml_tensor."""

    _fields_ = (
        ("type", _INT),
        ("buffer", _POINTER),
        ("ne", _I64 * 4),
        ("nb", _SIZE * 4),
        ("op", _INT),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", _POINTER * 10),
        ("view_src", _POINTER),
        ("view_offs", _SIZE),
        ("data", _POINTER),
    )


class TypeTraits(ctypes.Structure):
    """The start of a ggml_type_traits: how ggml stores a type."""

    _fields_ = (
        ("type_name", _TEXT),
        ("blck_size", _I64),
        ("blck_size_interleave", _I64),
        ("type_size", _SIZE),
        ("is_quantized", _BOOL),
        ("to_float", ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _I64)),
    )


class InitParams(ctypes.Structure):
    """A ggml_init_params: the memory for descriptions of tensors."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _POINTER), ("no_alloc", _BOOL))


class BufferOverride(ctypes.Structure):
    """A llama_model_tensor_buft_override: where tensors of a name go."""

    _fields_ = (("pattern", _TEXT), ("buft", _POINTER))


GRAPH_RESERVE, GET_SCHEDULER = "_Z19llama_graph_reserveP13llama_contextjjj", "_ZNK13llama_context9get_schedEv"
SET_LAYER = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
GET_LAYER = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
"""C++ names: llama.cpp declares these outside its C interface."""
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    GRAPH_RESERVE: (_POINTER, _POINTER, _U32, _U32, _U32),
    SET_LAYER: (None, _POINTER, _U32, _BOOL),
    GET_LAYER: (ctypes.POINTER(ctypes.c_float), _POINTER, _U32),
    GET_SCHEDULER: (_POINTER, _POINTER),
    "ggml_backend_buffer_get_type ggml_backend_buft_get_device": (_POINTER, _POINTER),
    "ggml_backend_dev_buffer_type ggml_get_data": (_POINTER, _POINTER),
    "ggml_backend_alloc_ctx_tensors_from_buft ggml_backend_sched_get_tensor_backend": (_POINTER, _POINTER, _POINTER),
    "ggml_backend_buffer_free ggml_backend_register ggml_backend_sched_reset ggml_free": (None, _POINTER),
    "ggml_backend_buffer_is_host": (_BOOL, _POINTER),
    "ggml_backend_cpu_buffer_type": (_POINTER,),
    "ggml_backend_dev_count ggml_backend_reg_count": (_SIZE,),
    "ggml_backend_dev_description ggml_backend_dev_name ggml_backend_name": (_TEXT, _POINTER),
    "ggml_backend_reg_name ggml_get_name": (_TEXT, _POINTER),
    "ggml_backend_dev_get ggml_backend_reg_get": (_POINTER, _SIZE),
    "ggml_backend_dev_memory": (None, _POINTER, _SIZES, _SIZES),
    "ggml_backend_dev_type ggml_graph_n_nodes": (_INT, _POINTER),
    "ggml_backend_load ggml_backend_reg_by_name": (_POINTER, _TEXT),
    "ggml_backend_load_all_from_path": (None, _TEXT),
    "ggml_backend_reg_get_proc_address": (_POINTER, _POINTER, _TEXT),
    "ggml_backend_sched_split_graph": (None, _POINTER, _POINTER),
    "ggml_backend_tensor_get": (None, _POINTER, _POINTER, _SIZE, _SIZE),
    "ggml_get_type_traits": (ctypes.POINTER(TypeTraits), _INT),
    "ggml_graph_node": (_POINTER, _POINTER, _INT),
    "ggml_init": (_POINTER, InitParams),
    "ggml_nbytes": (_SIZE, _POINTER),
    "ggml_new_tensor_2d": (_POINTER, _POINTER, _INT, _I64, _I64),
    "ggml_op_name ggml_type_name": (_TEXT, _INT),
    "ggml_pad": (_POINTER, _POINTER, _POINTER, _INT, _INT, _INT, _INT),
    "ggml_view_1d": (_POINTER, _POINTER, _POINTER, _I64, _SIZE),
}  # {functions that llama.cpp exports and its bindings do not declare: (their result, their arguments)}
_FUNCTIONS = {name: signature for names, signature in _SIGNATURES.items() for name in names.split()}


class Log:
    """The last lines llama.cpp logged, but for those of debugging, with ggml's level (4 = error). Thread-safe."""

    def __init__(self, capacity: int = 500) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._open = False  # the last line has no newline yet
        self._debugs = False  # whether what came last was for debugging: hundreds of lines for each context
        self.total = 0  # lines so far: a position to hand to `since`
        self.echo: Callable[[str], None] | None = None  # gets every text at once, too: the last before llama.cpp aborts

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
                    self.total += 1
                self._open = not piece.endswith("\n")

    def mark(self) -> int:
        """`total`. What follows comes here, even if another import of llama_cpp took the log."""
        for capture in _captures:
            capture()
        return self.total

    def since(self, mark: int) -> list[tuple[int, str]]:
        """(level, line) logged after `mark`, oldest first, as far as they are still held."""
        with self._lock:
            count = min(self.total - mark, len(self._lines))
            recent = list(self._lines)[len(self._lines) - count :]
        return [(level, line.rstrip()) for level, line in recent]

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
_captures: list[Callable[[], object]] = []  # has llama.cpp fill `log`: one, which holds the callback C code points to


@functools.cache
def api() -> Any:
    """The ctypes module of llama.cpp's bindings, checked and started once, its log captured. Raises LocalspecError:
    they are missing, do not load, or are not of the pinned version."""
    found = installed()
    try:
        module = found.load("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        reason = f"{found.distribution} does not load: {error}."
        raise LocalspecError(reason, advice(found.distribution, again=True)) from error

    def on_log(level: int, text: bytes | None, _: object) -> None:
        if text:
            log.add(level, text.decode("utf-8", "replace"))

    callback = module.llama_log_callback(on_log)
    _captures[:] = [functools.partial(module.llama_log_set, callback, ctypes.c_void_p(0))]
    log.mark()
    _load_backends(module)
    module.llama_backend_init()
    return module


_backends: list[str] = []  # file names of the modules that `_load_backends` had llama.cpp load


def _load_backends(module: Any) -> None:
    """Loads the backends of a build whose backends are modules (GGML_BACKEND_DL) from the folder of its own libraries.

    Without this call `llama_backend_init` would look for them in the program's folder and in the current directory,
    where anyone can plant one. A build with backends linked in has registered them by now, and is left alone. Raises
    LocalspecError: the folder has no module that this CPU can run, or the build lacks ggml's functions.
    """
    count = _function(module, "ggml_backend_reg_count")
    if count():
        return
    folder, mark = Path(module._lib._name).absolute().parent, log.mark()
    _function(module, "ggml_backend_load_all_from_path")(os.fsencode(folder))
    if not count():
        raise LocalspecError(
            f"llama.cpp has no backend: {folder} has no module that this CPU can run.",
            advice(installed().distribution, again=True),
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
    return installed().load("llama_cpp_ext")


@functools.cache
def c_function(name: str, *signature: Any) -> Any:
    """A function of libllama or of the ggml it is linked with that the bindings do not declare. `signature`: its result
    and its arguments, where `_FUNCTIONS` does not have it. Raises LocalspecError: this build does not export it."""
    return _function(api(), name, *signature)


def _function(module: Any, name: str, *signature: Any) -> Any:
    """`c_function` of a binding that is not started yet."""
    library = ctypes.CDLL(module._lib._name)  # its own handle: argtypes are not shared
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise LocalspecError(f"this llama.cpp does not export {name}.") from error
    function.restype, *function.argtypes = signature or _FUNCTIONS[name]
    return function


@dataclass(frozen=True, slots=True)
class Device:
    name: str  # as llama.cpp calls it: "CPU", "CUDA0", "Metal"
    description: str
    kind: str  # "cpu", "gpu", "igpu", "accel" or "meta"
    free_bytes: int
    total_bytes: int
    handle: int | None = field(default=None, compare=False, repr=False)  # ggml's


@dataclass(frozen=True, slots=True)
class Info:
    """What `localspec doctor` says about llama.cpp."""

    bindings: Bindings
    version: str  # llama.cpp's own
    system: str  # CPU features and options llama.cpp was compiled with, as it prints them
    gpu_offload: bool  # whether it lists a GPU
    gpu_backends: tuple[str, ...]  # for GPUs, of this build, whether they find one or not
    devices: tuple[Device, ...]


_GPU_BACKENDS = ("CUDA", "ROCm", "MUSA", "MTL", "Metal", "Vulkan", "SYCL", "OpenCL", "CANN")


def info() -> Info:
    module = api()
    get, name, count = (c_function(f"ggml_backend_reg_{fact}") for fact in ("get", "name", "count"))
    registered = [name(get(index)).decode() for index in range(count())]
    return Info(
        installed(),
        module.llama_version().decode(),
        module.llama_print_system_info().decode().strip(),
        bool(module.llama_supports_gpu_offload()),
        tuple(name for name in registered if name in _GPU_BACKENDS),
        tuple(devices()),
    )


def multiplies_with_amx() -> bool:
    """Whether this build of llama.cpp has AMX kernels, which are the first of its extra buffers.

    Compiled by GCC 12 they crash (general protection fault at `ldtilecfg`, ggml-org/llama.cpp#20824): that compiler's
    `_tile_loadconfig` names 8 of the configuration's 64 bytes, so it drops the stores of the others.
    """
    return b"AMX_INT8 = 1" in api().llama_print_system_info()


def devices() -> list[Device]:
    name, description, kind, memory = (
        c_function(f"ggml_backend_dev_{fact}") for fact in ("name", "description", "type", "memory")
    )
    get, found = c_function("ggml_backend_dev_get"), []
    for handle in map(get, range(c_function("ggml_backend_dev_count")())):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, free, total)
        number = kind(handle)
        word = _KINDS[number] if 0 <= number < len(_KINDS) else str(number)
        # More is used than the driver allows: llama.cpp's difference is below 0 then, and has no sign.
        left = free.value if free.value <= total.value else 1
        found.append(Device(name(handle).decode(), description(handle).decode(), word, left, total.value, handle))
    return found


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
