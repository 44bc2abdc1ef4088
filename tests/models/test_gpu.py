"""Which GPUs are used by default, on devices as llama.cpp would list them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from localspec.llama.library import lib
from localspec.machine import Place
from localspec.runtime import memory
from localspec.runtime.memory import LEAST_RATE, MEMORY_RATES, is_unified, used_gpus, why_unused

GIB = 1 << 30


def card(name: str, description: str = "NVIDIA GeForce RTX 4090", unified: bool = False) -> Place:
    return Place(name, "gpu", 20 * GIB, 24 * GIB, description, unified)


APPLE = card("MTL0", "Apple M2 Pro", unified=True)
INTEL = card("Vulkan0", "Intel(R) UHD Graphics 770 (ADL-S GT1)", unified=True)
STRIX = card("Vulkan0", "Radeon 8060S Graphics (RADV GFX1151)", unified=True)
LAVAPIPE = card("Vulkan1", "llvmpipe (LLVM 15.0.6, 256 bits)")


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ([], []),
        ([card("CUDA0")], ["CUDA0"]),
        ([card("CUDA0"), card("CUDA1")], ["CUDA0", "CUDA1"]),
        ([LAVAPIPE], []),
        ([card("Vulkan0", "SwiftShader Device (LLVM 10.0.0)")], []),
        ([card("Vulkan0"), LAVAPIPE], ["Vulkan0"]),
        ([APPLE], ["MTL0"]),
        ([card("MTL0", "Apple M1", unified=True)], []),
        ([card("MTL0", "Apple M1 Max", unified=True)], ["MTL0"]),
        ([card("MTL0", "Apple M9 Huge", unified=True)], []),
        ([INTEL], []),
        ([STRIX], ["Vulkan0"]),
        ([INTEL, card("CUDA0")], ["CUDA0"]),
        ([STRIX, card("Vulkan1", "AMD Radeon RX 7900 XTX (RADV NAVI31)")], ["Vulkan1"]),
        ([STRIX, LAVAPIPE], ["Vulkan0"]),
        ([card("CUDA0"), card("Vulkan0")], ["CUDA0"]),
        ([card("ROCm0", "AMD Radeon RX 7900 XTX"), card("Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)")], ["ROCm0"]),
        ([card("CUDA0", "NVIDIA GB10", unified=True)], ["CUDA0"]),
    ],
)
def test_gpus_that_are_used(listed: list[Place], names: list[str]) -> None:
    assert [gpu.name for gpu in used_gpus(listed)] == names


def test_why_a_gpu_is_not_used() -> None:
    assert why_unused(LAVAPIPE, [LAVAPIPE]) == "the CPU computes in its name"
    assert why_unused(INTEL, [INTEL]) == "how fast it reads memory is not known"
    assert why_unused(STRIX, [STRIX, card("CUDA0")]) == "there is a GPU with memory of its own"
    slow = card("MTL0", "Apple M1", unified=True)
    assert why_unused(slow, [slow]) == "it reads 68.25 GB/s, which the CPU can do as well"
    pair = [card("CUDA0"), card("Vulkan0")]
    assert why_unused(pair[1], pair) == "it is the card that CUDA0 is"


def test_every_rate_decides() -> None:
    for name, rate in MEMORY_RATES.items():
        one = card("X0", f"Some {name} Graphics (driver)", unified=True)
        assert bool(used_gpus([one])) == (rate >= LEAST_RATE), name


@pytest.mark.parametrize(
    ("name", "description", "integrated", "unified"),
    [
        ("MTL0", "Apple M2 Pro", False, True),
        ("MTL0", "AMD Radeon Pro 5500M", False, False),
        ("Vulkan0", "Intel(R) UHD Graphics 770", True, True),
        ("CUDA0", "NVIDIA GeForce RTX 4090", False, False),
    ],
)
def test_whose_memory_is_the_cpus(name: str, description: str, integrated: bool, unified: bool) -> None:
    assert is_unified(name, description, integrated) is unified


def test_what_llama_lists_becomes_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(name: str, description: str, kind: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, description=description, kind=kind, free_bytes=GIB, total_bytes=2 * GIB)

    listed = [
        device("CUDA0", "NVIDIA GeForce RTX 4090", "gpu"),
        device("Vulkan0", "NVIDIA GeForce RTX 4090", "gpu"),
        device("Vulkan1", "llvmpipe (LLVM 15.0.6, 256 bits)", "gpu"),
        device("Vulkan2", "Intel(R) UHD Graphics 770", "igpu"),
        device("BLAS", "OpenBLAS", "accel"),
        device("CPU", "AMD EPYC", "cpu"),
    ]
    monkeypatch.setattr(lib, "devices", lambda: listed)
    assert [gpu.name for gpu in memory.gpus()] == ["CUDA0", "Vulkan0", "Vulkan1", "Vulkan2"]
    assert memory.gpus()[3].unified
    cpu, only = memory.places()
    assert (cpu.kind, only) == ("cpu", Place("CUDA0", "gpu", GIB, 2 * GIB, "NVIDIA GeForce RTX 4090"))
