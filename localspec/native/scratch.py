"""What a thread keeps between calls, because making it costs more than a small verdict."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from localspec.errors import KernelError
from localspec.native.library import DraftStruct, NoiseStruct, PackedSampling
from localspec.types import Noise, SamplingParams, Tokens


class Scratch:
    """Buffers of one thread, with their addresses."""

    def __init__(self, lib: ctypes.CDLL, isa: int) -> None:
        handle = ctypes.c_void_p()
        status = lib.ls_workspace_new(isa, ctypes.addressof(handle))
        if status:
            raise KernelError(f"the native module cannot serve instruction set {isa} here (status {status}).")
        self.workspace = int(handle.value or 0)
        self._free = weakref.finalize(self, lib.ls_workspace_free, self.workspace)
        self.noise = NoiseStruct()
        self.noise_address = ctypes.addressof(self.noise)
        self.draft = DraftStruct()
        self.draft_address = ctypes.addressof(self.draft)
        self.results = np.zeros(4, dtype=np.int32)
        self.results_address = self.results.ctypes.data
        self._packed: dict[SamplingParams, PackedSampling] = {}
        self._last: PackedSampling | None = None
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
        last = self._last
        if last is None or last.params is not params:
            last = self._packed.get(params)
            if last is None:
                if len(self._packed) >= 256:
                    self._packed.clear()
                last = self._packed[params] = PackedSampling(params)
            self._last = last
        return last

    def put_noise(self, noise: Noise) -> None:
        self.noise.seed = noise.seed
        self.noise.stream = noise.stream & 0xFFFFFFFF
        self.noise.round = noise.round & 0x3FFFFFFF

    def put_window(self, window: Tokens, lookback: int) -> int:
        """Copies the tokens that matter; returns how many."""
        if lookback == 0:
            return 0
        tail = window if lookback < 0 else window[-lookback:]
        self.grow(len(tail))
        self.window[: len(tail)] = tail
        return len(tail)
