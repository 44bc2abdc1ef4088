"""Attention three ways: lsw_attention, llama.cpp's own operation on its CPU backend, and float64."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.lib import InitParams
from tests.native.wide.ggml import I64, INT, PTR, SIZE, TEXT, call

F32, F16, Q8_0, BF16 = 0, 1, 8, 30
SCALAR, NEON, AVX2, AVX512 = 1, 2, 3, 4
FLOAT = ctypes.c_float
DONE, NOT_TAKEN, NO_ISA = 0, 1, 2

Floats = npt.NDArray[np.float32]


class Call(ctypes.Structure):
    """struct wide_attention of native/wide/wide.h."""

    _fields_ = (
        *((name, I64) for name in ("head_size", "value_size", "heads", "kv_heads", "rows", "cells")),
        *((name, I64) for name in ("streams", "kv_streams")),
        *(("q", PTR), ("q_row", SIZE), ("q_head", SIZE), ("q_stream", SIZE)),
        *(("k_type", INT), ("k", PTR), ("k_cell", SIZE), ("k_head", SIZE), ("k_stream", SIZE)),
        *(("v_type", INT), ("v", PTR), ("v_cell", SIZE), ("v_head", SIZE), ("v_stream", SIZE)),
        *(("mask", PTR), ("mask_row", SIZE), ("mask_head", SIZE), ("mask_stream", SIZE)),
        *(("mask_heads", I64), ("mask_streams", I64), ("sinks", PTR)),
        *(("scale", FLOAT), ("max_bias", FLOAT), ("soft_cap", FLOAT), ("out", PTR), ("scratch", PTR)),
    )


@dataclass
class Cache:
    """Keys or values: bytes[streams, cells, kv_heads, bytes of a head] in a type of ggml, and what they stand for."""

    kind: int
    raw: npt.NDArray[np.uint8]
    values: Floats

    def cut(self, cells: slice) -> Cache:
        return Cache(self.kind, np.ascontiguousarray(self.raw[:, cells]), self.values[:, cells])


def encode(kind: int, values: npt.NDArray[Any]) -> Cache:
    """float[streams, cells, kv_heads, size] as a cache of this type."""
    values = np.ascontiguousarray(values, np.float32)
    shape = values.shape[:3]
    if kind == F32:
        raw = values.view(np.uint8)
    elif kind == F16:
        halves = values.astype(np.float16)
        raw, values = halves.view(np.uint8), halves.astype(np.float32)
    elif kind == BF16:
        upper = (values.view(np.uint32) >> 16).astype(np.uint16)
        raw, values = upper.view(np.uint8), (upper.astype(np.uint32) << 16).view(np.float32)
    else:
        blocks = values.reshape(*shape, -1, 32)
        scales = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
        safe = np.where(scales == 0, 1, scales).astype(np.float32)
        quants = np.clip(np.rint(blocks / safe), -127, 127).astype(np.int8)
        raw = np.concatenate([scales.view(np.uint8), quants.view(np.uint8)], axis=-1)
        values = (quants * scales.astype(np.float32)).reshape(values.shape)
    return Cache(kind, np.ascontiguousarray(raw).reshape(*shape, -1), values)


@dataclass
class Inputs:
    """One attention: q float32[streams, rows, heads, size], mask float16[streams or 1, heads or 1, rows, cells]."""

    q: Floats
    k: Cache
    v: Cache
    mask: npt.NDArray[np.float16] | None
    scale: float
    sinks: Floats | None = None
    max_bias: float = 0.0
    soft_cap: float = 0.0

    def rows(self, rows: slice) -> Inputs:
        mask = None if self.mask is None else np.ascontiguousarray(self.mask[:, :, rows])
        return replace(self, q=np.ascontiguousarray(self.q[:, rows]), mask=mask)

    def cells(self, count: int) -> Inputs:
        """The first cells only, or more: those hold zeros and are masked."""
        assert self.mask is not None
        have = self.mask.shape[-1]
        if count <= have:
            cut = slice(0, count)
            mask = np.ascontiguousarray(self.mask[..., cut])
            return replace(self, k=self.k.cut(cut), v=self.v.cut(cut), mask=mask)
        extra = count - have
        mask = np.pad(self.mask, ((0, 0), (0, 0), (0, 0), (0, extra)), constant_values=-np.inf)
        return replace(self, k=_padded(self.k, extra), v=_padded(self.v, extra), mask=mask)


def _padded(cache: Cache, extra: int) -> Cache:
    width = ((0, 0), (0, extra), (0, 0), (0, 0))
    return Cache(cache.kind, np.pad(cache.raw, width), np.pad(cache.values, width))


def describe(x: Inputs, out: Floats) -> Call:
    """The call for contiguous inputs; the arrays must outlive it."""
    streams, rows, heads, size = x.q.shape
    kv_streams, cells, kv_heads, value_size = x.v.values.shape
    made = Call(head_size=size, value_size=value_size, heads=heads, kv_heads=kv_heads, rows=rows, cells=cells)
    made.streams, made.kv_streams = streams, kv_streams
    made.q, (made.q_stream, made.q_row, made.q_head, _) = x.q.ctypes.data, x.q.strides
    made.k_type, made.k, (made.k_stream, made.k_cell, made.k_head, _) = x.k.kind, x.k.raw.ctypes.data, x.k.raw.strides
    made.v_type, made.v, (made.v_stream, made.v_cell, made.v_head, _) = x.v.kind, x.v.raw.ctypes.data, x.v.raw.strides
    if x.mask is not None:
        made.mask, (made.mask_stream, made.mask_head, made.mask_row, _) = x.mask.ctypes.data, x.mask.strides
        made.mask_streams, made.mask_heads = x.mask.shape[:2]
    if x.sinks is not None:
        made.sinks = x.sinks.ctypes.data
    made.scale, made.max_bias, made.soft_cap = x.scale, x.max_bias, x.soft_cap
    made.out = out.ctypes.data
    return made


def empty_output(x: Inputs) -> Floats:
    """float32[streams, rows, heads, value_size], full of NaN so that nothing left out goes unseen."""
    return np.full((*x.q.shape[:3], x.v.values.shape[-1]), np.nan, np.float32)


def run(made: Call, isa: int = 0, threads: int = 1) -> int:
    return int(wide.library().lsw_attention(ctypes.byref(made), isa, threads))


def attend(x: Inputs, isa: int = 0, threads: int = 1) -> Floats:
    out = empty_output(x)
    assert run(describe(x, out), isa, threads) == DONE
    return out


def isas() -> list[int]:
    """The instruction sets of this machine, best last."""
    x = Inputs(np.ones((1, 1, 1, 16), np.float32), *(encode(F16, np.ones((1, 1, 1, 16))),) * 2, None, 1.0)
    return [isa for isa in (SCALAR, NEON, AVX2, AVX512) if run(describe(x, empty_output(x)), isa) == DONE]


def slopes(heads: int, max_bias: float) -> npt.NDArray[np.float64]:
    """ALiBi: a geometric series over the heads, a second one between its terms for those past a power of two."""
    if max_bias == 0:
        return np.ones(heads)
    power = 2 ** int(np.log2(heads))
    first = 2.0 ** (-max_bias / power * np.arange(1, power + 1))
    between = 2.0 ** (-max_bias / 2 / power * (2 * np.arange(heads - power) + 1))
    return np.concatenate([first, between])


def exact(x: Inputs) -> npt.NDArray[np.float64]:
    """In float64. Rows that see nothing are zeros."""
    streams, _, heads, _ = x.q.shape
    group, per = heads // x.k.values.shape[2], streams // x.k.values.shape[0]
    k, v = (np.repeat(np.repeat(c.values.astype(np.float64), group, 2), per, 0) for c in (x.k, x.v))
    scores = np.einsum("srhd,schd->shrc", x.q.astype(np.float64), k) * x.scale
    if x.soft_cap:
        scores = x.soft_cap * np.tanh(scores / x.soft_cap)
    if x.mask is not None:
        tiled = np.tile(x.mask, (streams // x.mask.shape[0], heads // x.mask.shape[1], 1, 1)).astype(np.float64)
        scores = scores + slopes(heads, x.max_bias)[None, :, None, None] * tiled
    top = scores.max(-1, keepdims=True)
    if x.sinks is not None:
        top = np.maximum(top, x.sinks[None, :, None, None])
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    if x.sinks is not None:
        total = total + np.exp(x.sinks[None, :, None, None] - top)
    out: npt.NDArray[np.float64] = np.einsum("shrc,schd->srhd", weights / np.where(total == 0, 1, total), v)
    return out


class Ggml:
    """A graph of llama.cpp's FLASH_ATTN_EXT, one for each of `inputs`, on its CPU backend."""

    def __init__(self, inputs: list[Inputs], threads: int = 1) -> None:
        self.context = call("init", InitParams((16 * len(inputs) + 8) * 512 + 2 * call("graph_overhead"), None, True))
        device = call("backend_dev_by_type", 0)
        self.backend = call("backend_dev_init", device, None)
        registry = lib.c_function("ggml_backend_dev_backend_reg", PTR, PTR)(device)
        address = lib.c_function("ggml_backend_reg_get_proc_address", PTR, PTR, TEXT)
        ctypes.CFUNCTYPE(None, PTR, INT)(address(registry, b"ggml_backend_set_n_threads"))(self.backend, threads)
        self.graph = call("new_graph", self.context)
        self.filled: list[tuple[int, npt.NDArray[Any]]] = []
        self.outputs = [self._build(x) for x in inputs]
        for output in self.outputs:
            call("build_forward_expand", self.graph, output)
        self.shapes = [empty_output(x).shape for x in inputs]
        buffer_type = call("backend_dev_buffer_type", device)
        self.buffer = call("backend_alloc_ctx_tensors_from_buft", self.context, buffer_type)
        for tensor, values in self.filled:
            raw = np.ascontiguousarray(values)
            call("backend_tensor_set", tensor, raw.ctypes.data, 0, raw.nbytes)

    def _tensor(self, kind: int, shape: tuple[int, ...], values: npt.NDArray[Any]) -> int:
        new = lib.c_function("ggml_new_tensor_4d", PTR, PTR, INT, I64, I64, I64, I64)
        made = int(new(self.context, kind, *reversed(shape)))
        self.filled.append((made, values))
        return made

    def _permuted(self, kind: int, shape: tuple[int, ...], values: npt.NDArray[Any]) -> int:
        permute = lib.c_function("ggml_permute", PTR, PTR, PTR, INT, INT, INT, INT)
        return int(permute(self.context, self._tensor(kind, shape, values), 0, 2, 1, 3))

    def _build(self, x: Inputs) -> int:
        q = self._permuted(F32, x.q.shape, x.q)
        k, v = (self._permuted(cache.kind, cache.values.shape, cache.raw) for cache in (x.k, x.v))
        mask = None if x.mask is None else self._tensor(F16, x.mask.shape, x.mask)
        flash = lib.c_function("ggml_flash_attn_ext", PTR, PTR, PTR, PTR, PTR, PTR, FLOAT, FLOAT, FLOAT)
        made = int(flash(self.context, q, k, v, mask, x.scale, x.max_bias, x.soft_cap))
        if x.sinks is not None:
            sinks = self._tensor(F32, (1, 1, 1, len(x.sinks)), x.sinks)
            lib.c_function("ggml_flash_attn_ext_add_sinks", None, PTR, PTR)(made, sinks)
        return made

    def compute(self) -> None:
        assert call("backend_graph_compute", self.backend, self.graph) == 0

    def output(self, index: int = 0) -> Floats:
        out = np.empty(self.shapes[index], np.float32)
        call("backend_tensor_get", self.outputs[index], out.ctypes.data, 0, out.nbytes)
        return out

    def close(self) -> None:
        call("backend_buffer_free", self.buffer)
        call("backend_free", self.backend)
        call("free", self.context)


@contextmanager
def ggml_graph(inputs: list[Inputs], threads: int = 1) -> Iterator[Ggml]:
    made = Ggml(inputs, threads)
    try:
        yield made
    finally:
        made.close()


def by_ggml(x: Inputs, threads: int = 1) -> Floats:
    """What llama.cpp's CPU backend computes."""
    with ggml_graph([x], threads) as graph:
        graph.compute()
        return graph.output()
