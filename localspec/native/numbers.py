"""Noise, log and exp in C, the same bits everywhere.

What a thread keeps between calls, because making it costs more than a small verdict.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.native.library import ISAS, DraftStruct, NoiseStruct, PackedSampling, noise_struct, open_library
from localspec.types import Float64Array, Noise, Purpose, SamplingParams, SparseProbs, Tokens


class Scratch:
    """Buffers of one thread, with their addresses."""

    def __init__(self, lib: ctypes.CDLL, isa: int) -> None:
        handle = ctypes.c_void_p()
        status = lib.ls_workspace_new(isa, ctypes.addressof(handle))
        if status:
            raise KernelError(f"the C library cannot serve instruction set {isa} here (status {status}).")
        self.workspace = int(handle.value or 0)
        self._free = weakref.finalize(self, lib.ls_workspace_free, self.workspace)
        self.noise = NoiseStruct()
        self.noise_address = ctypes.addressof(self.noise)
        self.draft = DraftStruct()
        self.draft_address = ctypes.addressof(self.draft)
        self._draft_probs: tuple[npt.NDArray[Any], ...] = ()
        self.results = np.zeros(4, dtype=np.int32)
        self.results_address = self.results.ctypes.data
        self._packed: dict[int, PackedSampling] = {}
        """By id of the parameters, which they keep: a hash of all fields takes longer than a small verdict."""
        self.room = 0
        self.grow(64)

    def grow(self, count: int) -> None:
        """Room for `count` draft nodes, window tokens or results."""
        if count <= self.room:
            return
        self.room = 2 * count
        self.pointers = np.zeros(self.room + 1, dtype=np.uintp)
        self.tokens = np.zeros(self.room, dtype=np.int32)
        self.parents = np.zeros(self.room, dtype=np.int32)
        self.window = np.zeros(self.room, dtype=np.int32)
        self.picked = np.zeros(self.room, dtype=np.int32)
        self.probs = np.zeros(self.room, dtype=np.float32)
        self.draft.tokens = self.tokens.ctypes.data
        self.draft.parents = self.parents.ctypes.data
        self.pointers_address = self.pointers.ctypes.data
        self.window_address = self.window.ctypes.data
        self.picked_address = self.picked.ctypes.data
        self.probs_address = self.probs.ctypes.data

    def pack(self, params: SamplingParams) -> PackedSampling:
        found = self._packed.get(id(params))
        if found is None:
            if len(self._packed) >= 256:
                self._packed.clear()
            found = self._packed[id(params)] = PackedSampling(params)
        return found

    def put_noise(self, noise: Noise) -> None:
        self.noise.seed = noise.seed
        self.noise.stream = noise.stream & 0xFFFFFFFF
        self.noise.round = noise.round & 0x3FFFFFFF

    def put_draft(self, tokens: Tokens, parents: Tokens, probs: tuple[SparseProbs, ...] | None) -> None:
        """Copies the nodes, for which there is room; keeps what they were drawn from until the next draft."""
        n = len(tokens)
        self.draft.n = n
        self.tokens[:n] = tokens
        self.parents[:n] = parents
        self.draft.offsets = None
        if n and probs is not None:
            offsets = np.zeros(n + 1, dtype=np.int64)
            np.cumsum([len(p.tokens) for p in probs], out=offsets[1:])
            q_tokens = np.concatenate([p.tokens for p in probs]).astype(np.int32, copy=False)
            q_probs = np.concatenate([p.probs for p in probs]).astype(np.float64, copy=False)
            self._draft_probs = (offsets, q_tokens, q_probs)
            self.draft.offsets, self.draft.q_tokens, self.draft.q_probs = (
                array.ctypes.data for array in self._draft_probs
            )

    def put_window(self, window: Tokens, lookback: int) -> int:
        """Copies the tokens that matter; returns how many."""
        if lookback == 0:
            return 0
        tail = window if lookback < 0 else window[-lookback:]
        self.grow(len(tail))
        self.window[: len(tail)] = tail
        return len(tail)


class Numbers:
    """The open C library on one instruction set, and what it computes of numbers alone."""

    def __init__(self, isa: str = "best") -> None:
        """
        Args:
            isa: one of ISAS; "best" lets the CPU decide.
        """
        self.library = open_library()
        self._isa = ISAS[isa]
        self._local = threading.local()
        self.isa: str = self.library.ls_isa_name(self.library.ls_workspace_isa(self.scratch().workspace)).decode()
        """The instruction set in use."""
        self.cpu_features: str = self.library.ls_cpu_features().decode()
        """What the dispatcher saw, e.g. "x86-64 avx2 avx512"."""

    def scratch(self) -> Scratch:
        """Buffers of the thread that calls."""
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = Scratch(self.library, self._isa)
        return scratch

    def philox4x32_10(self, counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """uint32[4] random words for a uint32[4] counter and a uint32[2] key (Salmon et al. 2011)."""
        words = np.ascontiguousarray(counter, dtype=np.uint32)
        keys = np.ascontiguousarray(key, dtype=np.uint32)
        out = np.empty(4, dtype=np.uint32)
        self.library.ls_philox4x32_10(words.ctypes.data, keys.ctypes.data, out.ctypes.data)
        return out

    def uniform(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
        """float64[n] in (0, 1), one per token id: (x + 0.5) / 2^32, x the first Philox word."""
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        out = np.empty(len(tokens))
        struct = noise_struct(noise)
        self.library.ls_uniform(
            ctypes.addressof(struct), purpose, position & 0xFFFFFFFF, tokens.ctypes.data, len(tokens), out.ctypes.data
        )
        return out

    def gumbel(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
        """float64[n] = -log(-log(uniform)), with our own log."""
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        out = np.empty(len(tokens))
        struct = noise_struct(noise)
        self.library.suited(len(tokens)).ls_gumbel(
            self.scratch().workspace,
            ctypes.addressof(struct),
            purpose,
            position & 0xFFFFFFFF,
            tokens.ctypes.data,
            len(tokens),
            out.ctypes.data,
        )
        return out

    def log(self, x: Float64Array) -> Float64Array:
        """Natural logarithm of positive normal float64[n]."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = np.empty_like(x)
        self.library.ls_log(self.scratch().workspace, x.ctypes.data, x.size, out.ctypes.data)
        return out

    def exp(self, x: Float64Array) -> Float64Array:
        """e^x of float64[n] <= 700; exactly 0 below -690."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        out = np.empty_like(x)
        self.library.ls_exp(self.scratch().workspace, x.ctypes.data, x.size, out.ctypes.data)
        return out
