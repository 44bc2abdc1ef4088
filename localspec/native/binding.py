"""The functions of kernels.py, in C."""

from __future__ import annotations

import ctypes
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import KernelError
from localspec.native.device_rows import DeviceRows, verify_rows
from localspec.native.library import (
    BAD_ARGUMENT,
    BAD_DRAFT,
    BAD_TREE,
    ISAS,
    NO_MEMORY,
    NO_SUPPORT,
    NOT_FINITE,
    noise_struct,
    open_library,
)
from localspec.native.matrix import Int8Matrix
from localspec.native.ngrams import NgramIndex
from localspec.native.scratch import Scratch
from localspec.native.successors import SuccessorIndex
from localspec.native.suffix import SuffixIndex
from localspec.types import (
    Float32Array,
    Float64Array,
    LogitRows,
    Noise,
    Purpose,
    Rule,
    SamplingParams,
    SparseProbs,
    Tokens,
)

_MOST_INPUTS = 64
"""LS_MOST_INPUTS."""
_WORK_PER_THREAD = 1 << 23
"""Products of weights; below that, waking a thread costs more than it takes off."""


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """For products that are worth several threads."""
    return ThreadPoolExecutor(thread_name_prefix="localspec-product")


class NativeKernels:
    """The functions of kernels.py on one instruction set ("best" lets the CPU decide)."""

    name = "native"

    def __init__(self, path: Path, isa: str = "best") -> None:
        """Raises KernelError if the library cannot be loaded, is of another version, or the CPU lacks `isa`."""
        lib = open_library(path)
        self._lib = lib
        self._isa = ISAS[isa]
        self._local = threading.local()
        self.isa: str = lib.ls_isa_name(lib.ls_workspace_isa(self._scratch().workspace)).decode()
        self.cpu_features: str = lib.ls_cpu_features().decode()

    def _scratch(self) -> Scratch:
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = Scratch(self._lib, self._isa)
        return scratch

    def _error(self, scratch: Scratch, status: int, rows: LogitRows, index: int) -> KernelError:
        address = scratch.results_address
        self._lib.ls_fault(scratch.workspace, address, address + 4)
        row, token = int(scratch.results[0]), int(scratch.results[1])
        row = index if row < 0 else row
        if status == NOT_FINITE:
            return KernelError(f"row {row} of the logits holds NaN or +inf for token {token}.")
        if status == NO_SUPPORT:
            return KernelError(f"row {row} of the logits excludes every token: nothing is left to sample.")
        if status == BAD_TREE:
            node, parent = row - 1, int(scratch.parents[row - 1])
            fault = ": the block rule takes chains only" if -1 <= parent < node else "; parents come before children"
            return KernelError(f"draft node {node} has parent {parent}{fault}.")
        if status == BAD_DRAFT:
            return KernelError(f"draft node {row - 1} is token {token}, to which its own draft_probs give 0.")
        reason = {NO_MEMORY: "out of memory", BAD_ARGUMENT: "an argument is out of range"}.get(
            status, f"status {status}"
        )
        return KernelError(f"the native module failed: {reason}.")

    # Numbers

    def philox4x32_10(self, counter: Any, key: Any) -> Any:
        words = np.ascontiguousarray(counter, dtype=np.uint32)
        keys = np.ascontiguousarray(key, dtype=np.uint32)
        out = np.empty(4, dtype=np.uint32)
        self._lib.ls_philox4x32_10(words.ctypes.data, keys.ctypes.data, out.ctypes.data)
        return out

    def uniform(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        out = np.empty(len(tokens))
        struct = noise_struct(noise)
        self._lib.ls_uniform(
            ctypes.addressof(struct), purpose, position & 0xFFFFFFFF, tokens.ctypes.data, len(tokens), out.ctypes.data
        )
        return out

    def gumbel(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        out = np.empty(len(tokens))
        struct = noise_struct(noise)
        self._lib.suited(len(tokens)).ls_gumbel(
            self._scratch().workspace,
            ctypes.addressof(struct),
            purpose,
            position & 0xFFFFFFFF,
            tokens.ctypes.data,
            len(tokens),
            out.ctypes.data,
        )
        return out

    def log(self, x: Float64Array) -> Float64Array:
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = np.empty_like(x)
        self._lib.ls_log(self._scratch().workspace, x.ctypes.data, x.size, out.ctypes.data)
        return out

    def exp(self, x: Float64Array) -> Float64Array:
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = np.empty_like(x)
        self._lib.ls_exp(self._scratch().workspace, x.ctypes.data, x.size, out.ctypes.data)
        return out

    # One row

    def sample(
        self,
        rows: LogitRows,
        index: int,
        sampling: SamplingParams,
        window: Tokens,
        noise: Noise,
        position: int,
        count: int = 1,
    ) -> tuple[Tokens, Float32Array]:
        scratch = self._scratch()
        packed = scratch.pack(sampling)
        count = min(count, rows.n_vocab)
        scratch.grow(count)  # first: it would lose the window
        n_window = scratch.put_window(window, packed.lookback)
        scratch.put_noise(noise)
        status = self._lib.ls_sample(
            scratch.workspace,
            rows.pointer(index),
            rows.n_vocab,
            packed.address,
            scratch.window_address,
            n_window,
            scratch.noise_address,
            position & 0xFFFFFFFF,
            count,
            scratch.picked_address,
            scratch.probs_address,
            scratch.results_address,
        )
        if status:
            raise self._error(scratch, status, rows, index)
        found = int(scratch.results[0])
        return scratch.picked[:found].copy(), scratch.probs[:found].copy()

    def distribution(self, rows: LogitRows, index: int, sampling: SamplingParams, window: Tokens) -> SparseProbs:
        scratch = self._scratch()
        packed = scratch.pack(sampling)
        n_window = scratch.put_window(window, packed.lookback)
        room = min(sampling.top_k, rows.n_vocab) if sampling.top_k else rows.n_vocab
        tokens, probs = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float64)
        status = self._lib.ls_distribution(
            scratch.workspace,
            rows.pointer(index),
            rows.n_vocab,
            packed.address,
            scratch.window_address,
            n_window,
            tokens.ctypes.data,
            probs.ctypes.data,
            scratch.results_address,
        )
        if status:
            raise self._error(scratch, status, rows, index)
        found = int(scratch.results[0])
        return SparseProbs(tokens[:found].copy(), probs[:found].copy())

    def log_probs(self, rows: LogitRows, index: int, tokens: Tokens) -> Float64Array:
        scratch = self._scratch()
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        out = np.empty(len(tokens))
        status = self._lib.ls_log_probs(
            scratch.workspace, rows.pointer(index), rows.n_vocab, tokens.ctypes.data, len(tokens), out.ctypes.data
        )
        if status:
            raise self._error(scratch, status, rows, index)
        return out

    def top_log_probs(self, rows: LogitRows, index: int, count: int) -> tuple[Tokens, Float64Array]:
        scratch = self._scratch()
        count = min(count, rows.n_vocab)
        tokens, out = np.empty(count, dtype=np.int32), np.empty(count)
        status = self._lib.ls_top_log_probs(
            scratch.workspace,
            rows.pointer(index),
            rows.n_vocab,
            count,
            tokens.ctypes.data,
            out.ctypes.data,
            scratch.results_address,
        )
        if status:
            raise self._error(scratch, status, rows, index)
        found = int(scratch.results[0])
        return tokens[:found].copy(), out[:found].copy()

    # Verification

    def verify(
        self,
        rows: LogitRows,
        tokens: Tokens,
        parents: Tokens,
        probs: tuple[SparseProbs, ...] | None,
        sampling: SamplingParams,
        window: Tokens,
        noise: Noise,
        position: int,
        rule: Rule,
    ) -> tuple[Tokens, int]:
        scratch = self._scratch()
        packed = scratch.pack(sampling)
        n = len(tokens)
        scratch.grow(n)  # first: it would lose the window
        n_window = scratch.put_window(window, packed.lookback)
        draft = scratch.draft
        draft.n = n
        draft.offsets = None
        if n:
            scratch.tokens[:n] = tokens
            scratch.parents[:n] = parents
            if probs is not None and rule:
                offsets = np.zeros(n + 1, dtype=np.int64)
                np.cumsum([len(p.tokens) for p in probs], out=offsets[1:])
                q_tokens = np.concatenate([p.tokens for p in probs]).astype(np.int32, copy=False)
                q_probs = np.concatenate([p.probs for p in probs]).astype(np.float64, copy=False)
                draft.offsets = offsets.ctypes.data
                draft.q_tokens = q_tokens.ctypes.data
                draft.q_probs = q_probs.ctypes.data
        scratch.put_noise(noise)
        call = (
            rows.n_vocab,
            scratch.draft_address,
            packed.address,
            scratch.window_address,
            n_window,
            scratch.noise_address,
            position & 0xFFFFFFFF,
            rule,
        )
        address = scratch.results_address
        out = (scratch.picked_address, address, address + 4)
        if isinstance(rows, DeviceRows):
            status = verify_rows(self._lib, scratch.workspace, rows, n + 1, call, out)
        else:
            scratch.pointers[: n + 1] = rows.pointers[: n + 1]
            status = self._lib.ls_verify(scratch.workspace, scratch.pointers_address, *call, *out)
        if status:
            raise self._error(scratch, status, rows, 0)
        accepted, next_token = scratch.results[:2].tolist()
        return scratch.picked[:accepted].copy(), next_token

    # Drafter heads

    def matvec(self, matrix: Int8Matrix, inputs: Float32Array, threads: int = 1) -> Float32Array:
        rows, columns = matrix.shape
        threads = min(threads, rows * columns * len(inputs) // _WORK_PER_THREAD)
        if threads < 2:
            return self._product(matrix, inputs, 0, rows)
        edges = [rows * part // threads for part in range(threads + 1)]
        first = [_pool().submit(self._product, matrix, inputs, *edges[part : part + 2]) for part in range(1, threads)]
        mine = self._product(matrix, inputs, *edges[:2])
        return np.concatenate([mine, *(one.result() for one in first)], axis=1)

    def _product(self, matrix: Int8Matrix, inputs: Float32Array, begin: int, end: int) -> Float32Array:
        """Of the rows from `begin` to `end`."""
        columns, scratch = matrix.shape[1], self._scratch()
        out = np.empty((len(inputs), end - begin), dtype=np.float32)
        for start in range(0, len(inputs), _MOST_INPUTS):
            part = np.ascontiguousarray(inputs[start : start + _MOST_INPUTS])
            status = self._lib.ls_matvec(
                scratch.workspace,
                matrix.values.ctypes.data + begin * columns,
                matrix.scales.ctypes.data + 4 * begin,
                end - begin,
                columns,
                part.ctypes.data,
                len(part),
                out[start:].ctypes.data,
            )
            if status:
                raise KernelError(f"a product of {end - begin} x {columns} weights failed (status {status}).")
        return out

    # Prompt lookup

    def NgramIndex(self, min_ngram: int, max_ngram: int) -> NgramIndex:  # noqa: N802 (a class in the twin)
        return NgramIndex(self._lib, min_ngram, max_ngram)

    # Suffix decoding

    def SuffixIndex(self, depth: int) -> SuffixIndex:  # noqa: N802 (a class in the twin)
        return SuffixIndex(self._lib, depth)

    # Token recycling

    def SuccessorIndex(self) -> SuccessorIndex:  # noqa: N802 (a class in the twin)
        return SuccessorIndex(self._lib, self._scratch)
