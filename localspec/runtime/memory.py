"""Memory while models are loaded: whether it is short, and where models can be put."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from localspec.errors import LocalspecError
from localspec.machine import Place, available_bytes, ram

_LOW_MEMORY_BYTES = 192 * 2**20


def is_short() -> bool:
    """Whether so little is left that something should be given back."""
    available = available_bytes()
    return available is not None and available < _LOW_MEMORY_BYTES


def settle() -> None:
    """For programs that have just loaded a model: what is there stays, and is not searched for garbage any more until
    the next one is loaded. That would take 20 ms in the middle of an answer, or longer.

    A program that has put every search off until its first model is there (`gc.disable`) begins with them now. It has
    hardly any garbage (800 objects of 96,000), so it does not look for it before it is ready.
    """
    if gc.isenabled():
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    gc.enable()


def gpus(servers: str | None = None) -> list[Place]:
    """Every GPU that llama.cpp lists, in its order; none without llama.cpp. Of other machines' those of `servers`."""
    from localspec.llama.library import devices as rpc
    from localspec.llama.library import lib

    asked = rpc.connect(servers)
    try:
        devices = lib.devices()
    except LocalspecError:
        return []  # a header can be explained without llama.cpp
    found = []
    for one in devices:
        if one.kind in ("gpu", "igpu") and (not one.name.startswith(rpc.PREFIX) or one.description in asked):
            unified = is_unified(one.name, one.description, one.kind == "igpu")
            found.append(Place(one.name, "gpu", one.free_bytes, one.total_bytes, one.description, unified))
    return found


def places(servers: str | None = None) -> list[Place]:
    """The CPU's memory, and that of the GPUs that are used unless told otherwise."""
    return [ram(), *used_gpus(gpus(servers))]


# Which of the GPUs that llama.cpp lists are used by default, and why the others are not. Nothing is timed here; what
# answers' passes took on an integrated one counts more (`runtime.placement.measured`).

MEMORY_RATES: dict[str, float] = {
    "Apple M1": 68.25, "Apple M1 Pro": 200.0, "Apple M1 Max": 400.0, "Apple M1 Ultra": 800.0,
    "Apple M2": 100.0, "Apple M2 Pro": 200.0, "Apple M2 Max": 400.0, "Apple M2 Ultra": 800.0,
    "Apple M3": 100.0, "Apple M3 Pro": 150.0, "Apple M3 Max": 300.0, "Apple M3 Ultra": 819.0,
    "Apple M4": 120.0, "Apple M4 Pro": 273.0, "Apple M4 Max": 410.0, "Apple M5": 153.0,
    "Radeon 8050S": 256.0, "Radeon 8060S": 256.0, "NVIDIA GB10": 273.0, "NVIDIA Thor": 273.0, "Orin": 102.4,
}  # fmt: skip
"""GB/s that integrated GPUs can read, by a part of llama.cpp's description of them; the longest part that fits counts.
From the makers' data sheets; where one name has several, the lowest of those that are sold with 16 GB or more."""
LEAST_RATE = 100.0  # GB/s from which on an integrated GPU is used: the CPU alone reads 96 (two channels of DDR5-6000)
_SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "softpipe", "basic render")  # devices that the CPU computes


def is_software(gpu: Place) -> bool:
    """Whether it is no hardware: the CPU computes in its name, and slower than by itself."""
    return any(name in gpu.description.lower() for name in _SOFTWARE)


def memory_rate(gpu: Place) -> float | None:
    """GB/s of an integrated GPU; None = it is not in the table."""
    words = f" {gpu.description.replace('(', ' ').replace(')', ' ')} "
    found = [name for name in MEMORY_RATES if f" {name} " in words]
    return MEMORY_RATES[max(found, key=len)] if found else None


def is_unified(name: str, description: str, integrated: bool) -> bool:
    """Whether a device's memory is the CPU's: llama.cpp calls most such integrated, but not those of Apple's own."""
    return integrated or (name.startswith(("MTL", "Metal")) and description.startswith("Apple"))


def why_unused(gpu: Place, listed: Sequence[Place]) -> str:
    """Why a listed GPU is not used unless it is asked for, in words that go on after its name; "" = it is used."""
    if is_software(gpu):
        return "the CPU computes in its name"
    if (twin := _twin(gpu, listed)) is not None:
        return f"it is the card that {twin.name} is"
    if not gpu.unified:
        return ""
    if any(not other.unified and not is_software(other) for other in listed):
        return "there is a GPU with memory of its own"
    rate = memory_rate(gpu)
    if rate is None:
        return "how fast it reads memory is not known"
    return "" if rate >= LEAST_RATE else f"it reads {rate:g} GB/s, which the CPU can do as well"


def used_gpus(listed: Sequence[Place]) -> list[Place]:
    """Those that are used by default, in llama.cpp's order."""
    return [gpu for gpu in listed if not why_unused(gpu, listed)]


def integrated_gpus(listed: Sequence[Place]) -> list[Place]:
    """Integrated hardware where there is no card: real passes may say otherwise of it than the table does."""
    hardware = [gpu for gpu in listed if not is_software(gpu)]
    if any(not gpu.unified for gpu in hardware):
        return []
    return [gpu for gpu in hardware if _twin(gpu, listed) is None]


def _twin(gpu: Place, listed: Sequence[Place]) -> Place | None:
    """The same card, listed earlier by another backend; two equal cards of one backend are two."""
    backend = gpu.name.rstrip("0123456789")
    for other in listed[: listed.index(gpu)]:
        a, b = sorted((gpu.description, other.description), key=len)
        if a and other.name.rstrip("0123456789") != backend and f"{b} ".startswith(f"{a} "):
            return other
    return None
