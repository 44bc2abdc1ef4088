"""Devices of a model as text and as llama.cpp takes them: "CUDA0", or "CUDA0=3,CUDA1=1" with parts of the layers."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from localspec.errors import UsageError
from localspec.llama import lib


def read(device: str) -> dict[str, float]:
    """{llama.cpp's name: its part of the layers}; 0 = as memory has it.

    Raises:
        UsageError: a part is no number above 0, or only some devices have one.
    """
    found = {}
    for word in device.split(","):
        name, mark, part = word.strip().partition("=")
        try:
            found[name] = float(part) if mark else 0.0
        except ValueError:
            found[name] = math.nan
        if mark and not 0 < found[name] < math.inf:
            raise UsageError(f"the part of device {name} is {part!r}; it must be a number above 0.")
    if 0 < sum(map(bool, found.values())) < len(found):
        raise UsageError(f"device is {device!r}; give all devices a part of the layers, or none.")
    return found


def pointers(device: str | None, gpu_layers: int) -> tuple[Any, Any]:
    """A NULL-terminated array of ggml's devices, or None for all there are; and their parts, or None.

    Args:
        device: as `read` takes it; None = all, or the CPU alone when `gpu_layers` is 0.

    Raises:
        UsageError: as `read`, or there is no such device.
    """
    if device is None:
        return (ctypes.c_void_p * 1)(None) if gpu_layers == 0 else None, None
    there = {found.name: (index, found.kind) for index, found in enumerate(lib.devices())}
    handles, parts = [], []
    for name, part in read(device).items():
        if name not in there:
            raise UsageError(f"there is no device {name!r}; llama.cpp has {', '.join(there)}.")
        index, kind = there[name]
        if kind != "cpu":  # which computes what is left, anyway
            handles.append(lib.device_handles()[index])
            parts.append(part)
    room = max(len(parts), int(lib.api().llama_max_devices()))
    split = (ctypes.c_float * room)(*parts) if any(parts) else None
    return (ctypes.c_void_p * (len(handles) + 1))(*handles, None), split
