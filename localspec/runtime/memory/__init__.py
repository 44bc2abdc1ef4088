"""Memory while models are loaded: where they can be put, which layers go where, and a GPU that is lost."""

from __future__ import annotations

import gc

from localspec.errors import LocalspecError
from localspec.machine.memory import Place, available_bytes, ram
from localspec.models.memory import gpu

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
    """Every GPU that llama.cpp lists, in its order; none without llama.cpp.

    Args:
        servers: other machines whose devices count, as `EngineSettings.rpc`; those of no others do.
    """
    from localspec.llama.library import devices as rpc
    from localspec.llama.library import lib

    asked = rpc.connect(servers)
    try:
        devices = lib.devices()
    except LocalspecError:
        return []  # a header can be explained without llama.cpp
    return [
        Place(
            device.name,
            "gpu",
            device.free_bytes,
            device.total_bytes,
            device.description,
            gpu.is_unified(device.name, device.description, device.kind == "igpu"),
        )
        for device in devices
        if device.kind in ("gpu", "igpu") and (not device.name.startswith(rpc.PREFIX) or device.description in asked)
    ]


def places(servers: str | None = None) -> list[Place]:
    """The CPU's memory, and that of the GPUs that are used unless told otherwise (see `models.gpu`).

    Args:
        servers: as for `gpus`.
    """
    return [ram(), *gpu.used(gpus(servers))]
