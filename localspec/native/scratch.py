"""What a thread keeps between calls, because making it costs more than a small verdict."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.native.library import DraftStruct, NoiseStruct, PackedSampling
from localspec.types import Noise, SamplingParams, SparseProbs, Tokens


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
