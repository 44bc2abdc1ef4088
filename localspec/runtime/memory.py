"""Memory while models are loaded: whether it is short, and where models can be put."""

from __future__ import annotations

import gc

from localspec.errors import LocalspecError
from localspec.machine import Place, available_bytes, ram
from localspec.models.memory.gpu import is_unified, used_gpus

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
    """The CPU's memory, and that of the GPUs that are used unless told otherwise (see `models.memory.gpu`)."""
    return [ram(), *used_gpus(gpus(servers))]
