"""Weights of every type, products through localspec_wide and through llama.cpp's own kernels, for tests."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from localspec.gguf import PACKED
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.lib import InitParams
from tests.native.wide.ggml import F32, call, get_bytes, set_bytes

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

TYPES = list(PACKED)
QUANTISED = [kind for kind in TYPES if kind not in ("F16", "BF16")]
ISAS = {1: "scalar", 2: "neon", 3: "avx2", 4: "avx512", 5: "i8mm"}
TILE = 16
HALVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ2_0": (64,), "MXFP4": (),
}  # fmt: skip
"""Where a block has its scales in half precision."""


def number(kind: str) -> int:
    """ggml's number of a type."""
    return int(GGMLQuantizationType[kind])


def block(kind: str) -> tuple[int, int]:
    """Values and bytes of a type's block."""
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return values, size


def columns_of(kind: str, blocks: int) -> int:
    """A number of columns: so many blocks of 256, or of 32 where the type has smaller ones."""
    return blocks * max(block(kind)[0], 32)


def random_bytes(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Bytes:
    """uint8[rows, bytes of a row]: any bytes at all; scales may be infinite or no number."""
    values, size = block(kind)
    return rng.integers(0, 256, (rows, columns // values * size), np.uint8)


def weights(kind: str, rows: int, columns: int, rng: np.random.Generator, scale: float = 0.01) -> Bytes:
    """uint8[rows, bytes of a row] with every quant possible and scales up to `scale` (F16, BF16: its normal values)."""
    if kind == "F16":
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float16).view(np.uint8)
    if kind == "BF16":
        normal = (rng.standard_normal((rows, columns)) * scale).astype(np.float32)
        return (normal.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    values, size = block(kind)
    raw = random_bytes(kind, rows, columns, rng).reshape(rows, columns // values, size)
    for at in HALVES[kind]:
        scales = (rng.uniform(0, scale, (rows, columns // values, 1))).astype(np.float16)
        raw[:, :, at : at + 2] = scales.view(np.uint8)
    if kind == "MXFP4":  # exponents; the largest is that of `scale`
        most = 128 + int(np.floor(np.log2(scale)))
        raw[:, :, 0] = rng.integers(most - 8, most + 1, (rows, columns // values))
    return raw.reshape(rows, -1)


def real(kind: str, raw: Bytes) -> Doubles:
    """float64[rows, columns]: the weights' values."""
    if kind == "F16":
        return raw.view(np.float16).astype(np.float64)
    return np.asarray(quants.dequantize(raw, GGMLQuantizationType[kind]), np.float64)


def aligned(like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy at an address that is a multiple of 64."""
    room = np.empty(like.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
    copy[...] = like
    return copy


def pack(kind: str, columns: int, raw: Bytes) -> Bytes:
    """A packed copy of a matrix."""
    packed = aligned(raw)
    assert wide.library().lsw_pack(number(kind), columns, len(raw), packed.ctypes.data) == 0
    return packed


def product(kind: str, packed: Bytes, x: Floats, isa: int = 0, threads: int = 1) -> Floats:
    """float32[width, rows] from packed weights and x float32[width, columns]."""
    out = np.full((len(x), len(packed)), np.nan, np.float32)
    addresses = (packed.ctypes.data, x.ctypes.data, out.ctypes.data)
    run = wide.library().lsw_product
    assert run(number(kind), x.shape[1], len(packed), len(x), *addresses, isa, threads) == 0
    return out


def isas() -> list[int]:
    """Numbers of the instruction sets to be had here; none without the library."""
    if not wide.available():
        return []
    packed, x = pack("Q8_0", 32, np.zeros((16, 34), np.uint8)), np.zeros((1, 32), np.float32)
    out = np.zeros((1, 16), np.float32)
    addresses = (packed.ctypes.data, x.ctypes.data, out.ctypes.data)
    run = wide.library().lsw_product
    return [isa for isa in ISAS if run(number("Q8_0"), 32, 16, 1, *addresses, isa, 1) == 0]


def rounds_to_bf16(isa: int) -> bool:
    """Whether products with BF16 weights round activations to BF16, as CPUs with a dot product for it do."""
    ones = pack("BF16", 32, np.full((16, 32), 0x3F80, np.uint16).view(np.uint8))
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 1 + 2.0**-12
    return bool(product("BF16", ones, x, isa)[0, 0] == 1)


def llama_product(kind: str, raw: Bytes, x: Floats) -> Floats:
    """The same by llama.cpp's CPU backend, one thread, weights as they are in a file."""
    device = call("backend_dev_by_type", 0)
    context = call("init", InitParams(8 * call("tensor_overhead") + call("graph_overhead"), None, True))
    w = call("new_tensor_2d", context, number(kind), x.shape[1], len(raw))
    y = call("new_tensor_2d", context, F32, x.shape[1], len(x))
    out = call("mul_mat", context, w, y)
    graph = call("new_graph", context)
    call("build_forward_expand", graph, out)
    buffer = call("backend_alloc_ctx_tensors_from_buft", context, call("backend_dev_buffer_type", device))
    backend = call("backend_dev_init", device, None)
    lib.c_function("ggml_backend_cpu_set_n_threads", None, ctypes.c_void_p, ctypes.c_int)(backend, 1)
    set_bytes(w, raw.tobytes())
    set_bytes(y, x.tobytes())
    assert call("backend_graph_compute", backend, graph) == 0
    result: Floats = np.frombuffer(get_bytes(out), np.float32).reshape(len(x), len(raw)).copy()
    call("backend_free", backend)
    call("backend_buffer_free", buffer)
    call("free", context)
    return result
