"""GPUs that llama.cpp is made to list. What is put on them is computed on the CPU."""

from __future__ import annotations

import pytest

from localspec.llama import lib

GIB = 1 << 30
CARD = lib.Device("CUDA0", "NVIDIA GeForce RTX 4090", "gpu", 20 * GIB, 24 * GIB)
SLOW = lib.Device("Vulkan0", "Intel(R) UHD Graphics 770", "igpu", 8 * GIB, 8 * GIB)
SOFTWARE = lib.Device("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", "gpu", 8 * GIB, 8 * GIB)


def list_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: lib.Device) -> None:
    """Has llama.cpp list these besides the CPU."""
    real = lib.devices()
    handles: list[int | None] = [*lib.device_handles(), *(None for _ in gpus)]
    monkeypatch.setattr(lib, "devices", lambda: [*real, *gpus])
    monkeypatch.setattr(lib, "device_handles", lambda: handles)
