"""Devices that llama.cpp lists, which of them are used, and how to build llama.cpp for a GPU it has no backend for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from localspec.checks.finding import Finding
from localspec.llama.library import bindings, lib
from localspec.llama.library.preselection import ordinal_of
from localspec.llama.model import Model
from localspec.machine import ROOT, text_of
from localspec.models.memory import gpu
from localspec.runtime import memory
from localspec.runtime.loaded import Loaded
from localspec.runtime.memory import placement

_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
"""Makers of graphics cards, by their numbers on the PCI bus."""
_DISPLAY = "0x03"
"""How the PCI class of a graphics card begins."""
_LEAST_VRAM = 2 << 30
"""Bytes of its own from which on a GPU of AMD's counts as a card; processors with graphics set less aside."""
_BUILD = (
    "CMAKE_ARGS=-DGGML_{}=on pip install --force-reinstall --no-deps --no-cache-dir "
    "--no-binary llama-cpp-python llama-cpp-python=={}"
)
"""It serves in place of localspec-llama, too."""


def examine_devices(
    info: lib.Info, root: Path = ROOT, which: Callable[[str], str | None] = shutil.which
) -> Iterator[Finding]:
    """A finding per device, and one about a build without a GPU.

    Args:
        info: what llama.cpp says of itself.
        root: where the system's files are.
        which: finds a program.
    """
    listed = memory.gpus()
    places = {one.name: one for one in listed}
    for device in info.devices:
        room = f", {device.free_bytes / 2**30:.1f} of {device.total_bytes / 2**30:.1f} GiB free"
        use = ""
        if device.name in places:
            why = gpu.why_unused(places[device.name], listed)
            use = f"; not used by default: {why}" if why else "; used by default"
        if ordinal_of(device.name) is not None:
            use += "; it lists logits, by a kernel that is tried out"
        yield Finding(f"device {device.name}", f"{device.description}{room if device.total_bytes else ''}{use}")
    if not info.gpu_offload:
        yield _unbuilt(backend(root, which), info.bindings.distribution)


def _unbuilt(found: tuple[str, str] | None, distribution: str) -> Finding:
    advice = command = ""
    if found is not None:
        maker, flag = found
        advice = f"This machine seems to have a GPU of {maker}; build llama-cpp-python for it."
        command = _BUILD.format(flag, bindings.PINNED)
    return Finding("GPU", f"this {distribution} was built without GPU support", advice, command)


def backend(root: Path, which: Callable[[str], str | None]) -> tuple[str, str] | None:
    """(maker of a card that is here, llama.cpp's build option for it without GGML_); None = no card is seen.

    AMD's cards get ROCm where its compiler is installed, else Vulkan, as Intel's do. Graphics of Intel's processors,
    which sit on the first bus, are left out: they are not used by default.
    """
    cards = [(path.name, text_of(path / "vendor"), path) for path in sorted((root / "sys/bus/pci/devices").glob("*"))]
    cards = [card for card in cards if text_of(card[2] / "class").startswith(_DISPLAY)]
    if which("nvidia-smi") or any(maker == _NVIDIA for _, maker, _ in cards):
        return "NVIDIA", "CUDA"
    if any(maker == _AMD and _number(path / "mem_info_vram_total") >= _LEAST_VRAM for _, maker, path in cards):
        return "AMD", "HIP" if which("hipcc") and (root / "dev/kfd").exists() else "VULKAN"
    if any(maker == _INTEL and not address.startswith("0000:00:") for address, maker, _ in cards):
        return "Intel", "VULKAN"
    return None


def examine_layers(loaded: Loaded) -> Iterator[Finding]:
    """What of the loaded models runs where, and what that was decided by if real passes did; nothing on a machine
    without a GPU.
    """
    if not memory.gpus(loaded.settings.rpc):
        return
    words = f"target: {_where(loaded.model)}"
    if loaded.draft_model is not None:
        words += f"; draft model: {_where(loaded.draft_model)}"
    free = replace(loaded.settings, gpu_layers="auto", draft_gpu_layers="auto", device=None, draft_device=None)
    if (found := placement.measured(free)) is not None:
        words += f"; while answering {found.words}"
    if loaded.gpu_fault:
        yield Finding("layers", f"{words}; the GPU failed: {loaded.gpu_fault}", "Try the GPU again.", "--gpu-layers -1")
    else:
        yield Finding("layers", words)


def _where(model: Model) -> str:
    if not model.gpu_layers:
        return "on the CPU"
    count = "all layers" if model.gpu_layers < 0 else f"{model.gpu_layers} layers"
    spread = f" ({model.spread})" if str(model.spread) else ""
    return f"{count} on {model.device or 'the GPU'}{spread}"


def _number(path: Path) -> int:
    text = text_of(path)
    return int(text) if text.isdigit() else 0
