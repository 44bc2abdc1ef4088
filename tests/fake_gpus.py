"""GPUs that llama.cpp is made to list. What is put on them is computed on the CPU.

tests/gpu has a real device, of software: where layers, caches, tensors and the draft model go, what fits its memory,
what is said of it, texts under strict, times of passes, and loss, in a command, the server and the chat. On fakes stay

- kinds of hardware that are not there: integrated beside a card, two makers, Apple's, cards of unequal memory, one card
  listed twice (runtime/test_placement, test_tuning, test_offered, cli/test_gpus, checks/test_devices, models/test_gpu,
  tui/test_models_screen), and rows split over cards, which Vulkan's backend refuses (llama/test_spread);
- ratios of passes around the limit of 10 %, and rows that differ (runtime/test_pass_record): a real one has its own;
- a loss at a chosen pass: in a prompt, a grammar, where the CPU cannot serve either, in a server's process whose device
  comes back (runtime/, server/ and tui/test_device_loss); a real one that is lost stays lost until its process ends;
- CUDA's kernel, whose driver tests/native/gpu plays (runtime/test_lists), and damage to what is remembered;
- devices of a second host (llama/test_rpc; with LOCALSPEC_RPC_BUILD a real server on this one);
- `verify` (cli/test_verify): a device of software takes minutes for it; tests/gpu/test_texts compares the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from localspec.llama.library import lib

GIB = 1 << 30
CARD = lib.Device("CUDA0", "NVIDIA GeForce RTX 4090", "gpu", 20 * GIB, 24 * GIB)
SLOW = lib.Device("Vulkan0", "Intel(R) UHD Graphics 770", "igpu", 8 * GIB, 8 * GIB)
SOFTWARE = lib.Device("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", "gpu", 8 * GIB, 8 * GIB)


def list_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: lib.Device) -> None:
    """Has llama.cpp list these besides the CPU."""
    real = lib.devices()
    monkeypatch.setattr(lib, "devices", lambda: [*real, *gpus])


class Gpu:
    """Computes some passes of the models that were put on a GPU and is then lost: `llama_decode` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 30
        """Passes until it is lost."""
        self.refused = 0
        """Passes that it was asked for since."""
        self.at_loss: Callable[[], object] = lambda: None
        """Called with the first of them."""
        self._models, self._contexts = set[int](), set[int]()
        api = lib.api()
        self._decode, self._load = api.llama_decode, api.llama_model_load_from_file
        self._make = api.llama_init_from_model
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, api.llama_batch)
        monkeypatch.setattr(api, "llama_decode", kind(self.decode))  # as C calls it
        monkeypatch.setattr(api, "llama_model_load_from_file", self.load)
        monkeypatch.setattr(api, "llama_init_from_model", self.make)

    def load(self, path: bytes, params: Any) -> Any:
        found = self._load(path, params)
        self._mark(self._models, lib.pointer_value(found), bool(params.n_gpu_layers))
        return found

    def make(self, model: Any, params: Any) -> Any:
        found = self._make(model, params)
        self._mark(self._contexts, int(found), lib.pointer_value(model) in self._models)
        return found

    @staticmethod
    def _mark(known: set[int], address: int, here: bool) -> None:
        """Whether what is at an address is on this GPU; what was there before is freed."""
        (known.add if here else known.discard)(address)

    def decode(self, context: int, batch: Any) -> int:
        if context in self._contexts:
            self.left -= 1
            if self.left < 0:
                self.refused += 1
                if self.refused == 1:
                    self.at_loss()
                return -3
        return int(self._decode(context, batch))
