"""Devices of a model as text and as llama.cpp takes them: "CUDA0", or "CUDA0=3,CUDA1=1" with parts of the layers."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from localspec.errors import UsageError
from localspec.gguf.spread import CPU, Spread
from localspec.llama.library import lib
from localspec.llama.library.structs import BufferOverride


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


def _there() -> dict[str, tuple[lib.Device, int]]:
    """{name: device and ggml's handle of it}, in llama.cpp's order."""
    return {one.name: (one, handle) for one, handle in zip(lib.devices(), lib.device_handles(), strict=True)}


def pointers(device: str | None, gpu_layers: int) -> tuple[Any, Any]:
    """A NULL-terminated array of ggml's devices, or None for all there are; and their parts, or None.

    Args:
        device: as `read` takes it; None = all, or the CPU alone when `gpu_layers` is 0.

    Raises:
        UsageError: as `read`, or there is no such device.
    """
    if device is None:
        return (ctypes.c_void_p * 1)(None) if gpu_layers == 0 else None, None
    there = _there()
    handles, parts = [], []
    for name, part in read(device).items():
        if name not in there:
            raise UsageError(f"there is no device {name!r}; llama.cpp has {', '.join(there)}.")
        found, handle = there[name]
        if found.kind != "cpu":  # which computes what is left, anyway
            handles.append(handle)
            parts.append(part)
    room = max(len(parts), int(lib.api().llama_max_devices()))
    split = (ctypes.c_float * room)(*parts) if any(parts) else None
    return (ctypes.c_void_p * (len(handles) + 1))(*handles, None), split


def overrides(spread: Spread, device: str | None, gpu_layers: int) -> Any:
    """An array of llama_model_tensor_buft_override whose last has no pattern, or None for none.

    Args:
        spread: whose overrides.
        device, gpu_layers: as for `pointers`; tensors go to these devices and to the CPU only.

    Raises:
        UsageError: an override names another device.
    """
    if not spread.overrides:
        return None
    there = _there()
    named = [] if not gpu_layers else list(there) if device is None else list(read(device))
    buffer_type = lib.c_function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    found = []
    for pattern, name in spread.overrides:
        if name != CPU and name not in named:
            used = ", ".join(dict.fromkeys([CPU, *named]))
            raise UsageError(f"override_tensor puts {pattern} on {name}; the devices of this model are {used}.")
        found.append(BufferOverride(pattern.encode(), buffer_type(there[name][1])))
    return (BufferOverride * (len(found) + 1))(*found)


def put(params: Any, spread: Spread, device: str | None, gpu_layers: int) -> tuple[Any, ...]:
    """Devices, their parts and overrides into a llama_model_params; returns the arrays that it points to.

    Args:
        params: to fill in.
        spread, device, gpu_layers: as for `Model.load`.

    Raises:
        UsageError: as `pointers` and `overrides`; or rows are split over GPUs in another order than llama.cpp's.
    """
    if spread.mode == "row" and gpu_layers and device is not None:
        _check_order(device)
    devices, parts = pointers(device, gpu_layers)
    moved = overrides(spread, device, gpu_layers)
    params.devices = ctypes.cast(devices, ctypes.c_void_p) if devices is not None else None
    params.tensor_split = ctypes.cast(parts, ctypes.POINTER(ctypes.c_float)) if parts is not None else None
    params.tensor_buft_overrides = ctypes.cast(moved, ctypes.c_void_p) if moved is not None else None
    params.split_mode = lib.SPLIT_MODES[spread.mode if gpu_layers else "layer"]
    return devices, parts, moved


def _check_order(device: str) -> None:
    """Where GPUs share each matrix, llama.cpp counts parts by its own numbers of devices.

    Raises:
        UsageError: a GPU is left out before the last one that is named, or they have another order.
    """
    there = [one.name for one in lib.devices() if one.kind in ("gpu", "igpu")]
    named = [name for name in read(device) if name in there]
    if named != there[: len(named)]:
        raise UsageError(f"device is {device!r}; with split_mode row name GPUs in this order: {', '.join(there)}.")
