"""What localspec has copied from ggml and llama.cpp: which struct, field and number of theirs each one is."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from layout import Headers, declared_constants, declared_structs, offset_of, size_of, size_of_field

from localspec.gguf import FILE_TYPES, TENSOR_TYPES
from localspec.llama.library import lib
from localspec.runtime import engine

ROOT = Path(__file__).resolve().parents[2]
ABI, WIDE = "native/wide/abi.h", "native/wide/wide.h"
LIB, FORMATS = "localspec/llama/library/lib.py", "localspec/gguf/__init__.py"
READINGS = "localspec/runtime/engine.py"

THEIRS = ("ggml.h", "ggml-backend.h", "ggml-backend-impl.h", "ggml-cpu.h", "ggml-common.h", "llama.h")
"""Headers of theirs that declare it."""

PYTHON: dict[str, tuple[type[ctypes.Structure], bool]] = {
    "ggml_tensor": (lib.GgmlTensor, False),
    "ggml_type_traits": (lib.TypeTraits, False),
    "ggml_init_params": (lib.InitParams, True),
    "llama_model_tensor_buft_override": (lib.BufferOverride, True),
}
"""Their struct: ours in Python, and whether ours is all of it."""

C = {
    "tensor": "ggml_tensor",
    "buffer_type_calls": "ggml_backend_buffer_type_i",
    "buffer_type": "ggml_backend_buffer_type",
    "buffer_calls": "ggml_backend_buffer_i",
    "buffer": "ggml_backend_buffer",
    "backend_calls": "ggml_backend_i",
    "backend": "ggml_backend",
    "device_caps": "ggml_backend_dev_caps",
    "device_props": "ggml_backend_dev_props",
    "device_calls": "ggml_backend_device_i",
    "device": "ggml_backend_device",
    "registry_calls": "ggml_backend_reg_i",
    "registry": "ggml_backend_reg",
    "cpu_traits": "ggml_type_traits_cpu",
    "type_traits": "ggml_type_traits",
}
"""Our struct in native/wide/abi.h: theirs."""
STARTS = ("type_traits",)
"""Of these native/wide/abi.h has the start alone."""
FIELDS = {
    "calls": "iface",
    "registry": "reg",
    "buffer.type": "buft",
    "backend_calls.left_out": "set_tensor_async..cpy_tensor_async",
    "backend_calls.plans": "graph_plan_create..graph_plan_compute",
    "backend_calls.events": "event_record..event_wait",
    "device_calls.events": "event_new..event_synchronize",
    "type_traits.name": "type_name",
    "type_traits.values": "blck_size",
    "type_traits.interleaved": "blck_size_interleave",
    "type_traits.bytes": "type_size",
    "type_traits.is_quantised": "is_quantized",
}
"""Our field in native/wide/abi.h, if theirs has another name. FIRST..LAST are several of theirs."""
CONSTANTS = {
    "ABI_VERSION": "GGML_BACKEND_API_VERSION",
    "STATUS_OK": "GGML_STATUS_SUCCESS",
    "STATUS_NO_MEMORY": "GGML_STATUS_ALLOC_FAILED",
    "STATUS_": "GGML_STATUS_",
    "USAGE_": "GGML_BACKEND_BUFFER_USAGE_",
    "DEVICE_": "GGML_BACKEND_DEVICE_TYPE_",
    "FLAG_": "GGML_TENSOR_FLAG_",
    "OP_": "GGML_OP_",
    "TYPE_": "GGML_TYPE_",
    "WIDE_": "GGML_TYPE_",
}
"""Our constant in C, or how its name begins: theirs."""
FILE_TYPE_NAMES = {"F32": "LLAMA_FTYPE_ALL_F32", "MXFP4": "LLAMA_FTYPE_MOSTLY_MXFP4_MOE"}
"""Their file types that are not named after ours."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A number of ours that must be theirs."""

    theirs: str
    """The C expression that says it in their headers."""
    ours: int
    what: str
    """For people: what it is a number of, such as "ggml_tensor: byte where ne begins"."""
    file: str
    """Where ours stands."""


def copies() -> Iterator[Copy]:
    """All of them."""
    yield from in_python(PYTHON)
    header = (ROOT / ABI).read_text(encoding="utf-8")
    yield from _in_c(header)
    yield from _constants(ABI, declared_constants(header))
    kinds = re.search(r"^enum wide_type \{[^}]*\}", (ROOT / WIDE).read_text(encoding="utf-8"), re.MULTILINE)
    assert kinds is not None
    yield from _constants(WIDE, declared_constants(kinds[0]))
    for name, number, file in _numbers():
        yield Copy(name, number, name, file)
    for name, _, size in TENSOR_TYPES.values():
        if name.startswith(("Q", "IQ", "TQ", "MX", "NV")):
            block = f"block_{name.lower()}".replace("_k", "_K")
            yield Copy(f"sizeof({block})", size, f"{block}: bytes", FORMATS)


def in_python(pairs: Mapping[str, tuple[type[ctypes.Structure], bool]], file: str = LIB) -> Iterator[Copy]:
    """Those of structs that ctypes lays out; see `PYTHON`."""
    for theirs, (ours, whole) in pairs.items():
        if whole:
            yield Copy(size_of(theirs), ctypes.sizeof(ours), f"{theirs}: bytes", file)
        for name, *_ in ours._fields_:
            place = getattr(ours, name)
            yield Copy(offset_of(theirs, name), place.offset, f"{theirs}: byte where {name} begins", file)
            yield Copy(size_of_field(theirs, name), place.size, f"{theirs}: bytes of {name}", file)


def their_field(struct: str, field: str) -> str:
    """Their name of a field of native/wide/abi.h."""
    return FIELDS.get(f"{struct}.{field}", FIELDS.get(field, field))


def their_constant(name: str) -> str:
    """Their name of one of our constants in C.

    Raises:
        KeyError: `CONSTANTS` has none.
    """
    if name in CONSTANTS:
        return CONSTANTS[name]
    begin = name.partition("_")[0] + "_"
    rest = name.removeprefix(begin)
    return CONSTANTS[begin] + (rest.replace("_k", "_K") if begin != "STATUS_" else rest)


def _ours() -> Headers:
    return Headers(("abi.h", "wide.h"), ((ROOT / ABI).parent,))


def _in_c(header: str) -> Iterator[Copy]:
    """Those of the structs in native/wide/abi.h."""
    asked: list[tuple[str, str, str]] = []  # their expression, ours, what
    for ours, fields in declared_structs(header).items():
        theirs = C.get(ours)
        if theirs is None:
            continue
        if ours not in STARTS:
            asked.append((size_of(theirs), size_of(ours), f"{theirs}: bytes"))
        for field in fields:
            name = their_field(ours, field)
            asked.append((offset_of(theirs, name), offset_of(ours, field), f"{theirs}: byte where {name} begins"))
            asked.append((size_of_field(theirs, name), size_of_field(ours, field), f"{theirs}: bytes of {name}"))
    for (expression, _, what), number in zip(asked, _ours().measure([ours for _, ours, _ in asked]), strict=True):
        assert number is not None, what
        yield Copy(expression, number, what, ABI)


def _constants(file: str, names: list[str]) -> Iterator[Copy]:
    for name, number in zip(names, _ours().measure(names), strict=True):
        assert number is not None, name
        yield Copy(their_constant(name), number, their_constant(name), file)


def _numbers() -> Iterator[tuple[str, int, str]]:
    """(their name, our number, where ours stands) of what Python knows."""
    for number, (name, _, _) in TENSOR_TYPES.items():
        yield f"GGML_TYPE_{name}", number, FORMATS
    for number, name in FILE_TYPES.items():
        yield FILE_TYPE_NAMES.get(name, f"LLAMA_FTYPE_MOSTLY_{name}"), number, FORMATS
    for name, number in lib.GGML_TYPES.items():
        yield f"GGML_TYPE_{name.upper()}", number, LIB
    for name, number in lib.SPLIT_MODES.items():
        yield f"LLAMA_SPLIT_MODE_{name.upper()}", number, LIB
    for name, wish in (("AUTO", "auto"), ("DISABLED", False), ("ENABLED", True)):
        yield f"LLAMA_FLASH_ATTN_TYPE_{name}", lib.FLASH_ATTENTION[wish], LIB
    for number, name in enumerate(lib._KINDS):
        yield f"GGML_BACKEND_DEVICE_TYPE_{name.upper()}", number, LIB
    yield "GGML_LOG_LEVEL_DEBUG", lib._DEBUG_LEVEL, LIB
    yield "GGML_LOG_LEVEL_ERROR", lib._ERROR_LEVEL, LIB
    yield "GGML_LOG_LEVEL_CONT", lib._CONTINUE_LEVEL, LIB
    yield "LLAMA_POOLING_TYPE_NONE", engine._NONE, READINGS
    yield "LLAMA_POOLING_TYPE_MEAN", engine._MEAN, READINGS
    yield "LLAMA_POOLING_TYPE_CLS", engine._FIRST, READINGS
    yield "LLAMA_POOLING_TYPE_LAST", engine._LAST, READINGS
    yield "LLAMA_POOLING_TYPE_RANK", engine._RANK, READINGS


def functions() -> dict[str, str]:
    """{function of theirs that is looked up in their library by its name: the first file that does it}."""
    found: dict[str, str] = {}
    for path, text in _sources():
        names = re.findall(r'(?<!b)"(ggml_[a-z0-9_]+)"', text)
        for name in names + [_plain(symbol) for symbol in re.findall(r'"_ZN?K?(\d\w+)"', text)]:
            found.setdefault(name, path)
    return found


def bindings() -> dict[str, str]:
    """{name that their Python bindings must have: the first file that uses it}."""
    found: dict[str, str] = {}
    for path, text in _sources():
        for name in re.findall(r"(?:api(?:\(\))?|module)\.(llama_\w+|LLAMA_\w+|ggml_\w+|GGML_\w+)", text):
            found.setdefault(name, path)
    return found


def _sources() -> Iterator[tuple[str, str]]:
    """(path, text) of what calls llama.cpp."""
    for path in sorted([*(ROOT / "localspec").rglob("*.py"), ROOT / "native/wide/abi.c"]):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def _plain(symbol: str) -> str:
    """The last name in a C++ symbol, after its "_Z", "_ZN" or "_ZNK"."""
    name = ""
    while number := re.match(r"\d+", symbol):
        end = number.end() + int(number[0])
        name, symbol = symbol[number.end() : end], symbol[end:]
    return name
