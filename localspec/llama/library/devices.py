"""Devices of a model as text and as llama.cpp takes them: "CUDA0", or "CUDA0=3,CUDA1=1" with parts of the layers; and
its RPC backend: devices of other machines, where a build has it.

llama.cpp ends the process where a server is away or speaks another version, so each is asked first.
"""

from __future__ import annotations

import ctypes
import math
import socket
import struct
from typing import Any

from localspec.errors import LocalspecError, UsageError
from localspec.gguf.spread import CPU, Spread
from localspec.llama.library import lib
from localspec.llama.library.lib import BufferOverride


def read(device: str) -> dict[str, float]:
    """{llama.cpp's name: its part}; 0 = as memory has it. Raises UsageError: no number above 0, or only some have
    one."""
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


def named(device: str) -> dict[str, tuple[lib.Device, float]]:
    """{name: device, its part}, as `read` has them. Raises UsageError: there is no such device."""
    there, found = {one.name: one for one in lib.devices()}, {}
    for name, part in read(device).items():
        if name not in there:
            names = ", ".join(one for one, known in there.items() if known.kind != "accel")
            raise UsageError(f"there is no device {name!r}; llama.cpp has {names}.")
        found[name] = there[name], part
    return found


def overrides(spread: Spread, device: str | None, gpu_layers: int) -> Any:
    """An array of llama_model_tensor_buft_override whose last has no pattern, or None for none. Tensors go to the
    devices of `put` and to the CPU only. Raises UsageError: an override names another device."""
    if not spread.overrides:
        return None
    there = {one.name: one for one in lib.devices()}
    named = [] if not gpu_layers else list(there) if device is None else list(read(device))
    buffer_type = lib.c_function("ggml_backend_dev_buffer_type")
    found = []
    for pattern, name in spread.overrides:
        if name != CPU and name not in named:
            used = ", ".join(dict.fromkeys([CPU, *named]))
            raise UsageError(f"override_tensor puts {pattern} on {name}; the devices of this model are {used}.")
        found.append(BufferOverride(pattern.encode(), buffer_type(there[name].handle)))
    return (BufferOverride * (len(found) + 1))(*found)


def put(params: Any, spread: Spread, device: str | None, gpu_layers: int) -> tuple[Any, ...]:
    """Devices, their parts and overrides into a llama_model_params; returns the arrays that it points to. `device` as
    for `read`; None = all, or the CPU alone when `gpu_layers` is 0. Raises UsageError: no such device, or not in the
    order that the spread needs."""
    if spread.mode == "row" and gpu_layers and device is not None:
        # Where GPUs share each matrix, llama.cpp counts parts by its own numbers of devices: none may be left out
        # before the last one that is named.
        there = [one.name for one in lib.devices() if one.kind in ("gpu", "igpu")]
        given = [name for name in read(device) if name in there]
        if given != there[: len(given)]:
            raise UsageError(f"device is {device!r}; with split_mode row name GPUs in this order: {', '.join(there)}.")
    devices: Any = (ctypes.c_void_p * 1)(None) if device is None and gpu_layers == 0 else None
    parts: Any = None
    if device is not None:
        used = [one for one in named(device).values() if one[0].kind != "cpu"]  # which computes what is left, anyway
        handles, shares = [one.handle for one, _ in used], [share for _, share in used]
        devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
        room = max(len(shares), int(lib.api().llama_max_devices()))
        parts = (ctypes.c_float * room)(*shares) if any(shares) else None
    moved = overrides(spread, device, gpu_layers)
    params.devices = ctypes.cast(devices, ctypes.c_void_p) if devices is not None else None
    params.tensor_split = ctypes.cast(parts, ctypes.POINTER(ctypes.c_float)) if parts is not None else None
    params.tensor_buft_overrides = ctypes.cast(moved, ctypes.c_void_p) if moved is not None else None
    params.split_mode = lib.SPLIT_MODES[spread.mode if gpu_layers else "layer"]
    return devices, parts, moved


PROTOCOL = (7, 0)  # major and minor version of the protocol that the pinned llama.cpp speaks (ggml-rpc.h)
PREFIX = "RPC"  # what llama.cpp's names of these devices begin with; their descriptions are HOST:PORT
_SECONDS = 5.0  # for a server to answer; it serves one client at a time
_HELLO = struct.pack("=BQ24x", 14, 24)  # the first request (ggml-rpc.cpp): command, length of what follows
_ANSWER = struct.Struct("=QBB26x")  # its answer: length of what follows (28), major and minor version


def servers(text: str | None) -> list[str]:
    """HOST:PORT of every server in a setting such as "10.0.0.7:50052,10.0.0.8:50052". Raises UsageError."""
    found = [] if text is None else [word.strip() for word in text.split(",")]
    for word in found:
        host, _, port = word.partition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise UsageError(f"rpc is {text!r}; it must be HOST:PORT, or several with commas.")
    return found


def connect(text: str | None) -> list[str]:
    """Adds the devices of the servers to those of this process, where they stay; a second call adds none again. Returns
    HOST:PORT of every server. Raises UsageError: `text` names no servers, or this llama.cpp was built without RPC."""
    found = servers(text)
    if not found:
        return []
    backend = lib.c_function("ggml_backend_reg_by_name")(PREFIX.encode())
    if backend is None:
        raise UsageError(
            f"rpc is {text!r}, but this llama.cpp was built without RPC.",
            'Leave --rpc out, or build llama-cpp-python with CMAKE_ARGS="-DGGML_RPC=ON".',
        )
    known = {one.description for one in lib.devices() if one.name.startswith(PREFIX)}
    for server in found:
        if server not in known:
            greet(server)
            address = lib.c_function("ggml_backend_reg_get_proc_address")(backend, b"ggml_backend_rpc_add_server")
            added = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)(server.encode())
            if added is None:
                raise LocalspecError(f"The RPC server {server} has no devices.")
            lib.c_function("ggml_backend_register")(added)
            known.add(server)
    return found


def greet(server: str) -> None:
    """Says hello to a server. Raises LocalspecError: it is away, or speaks another version."""
    host, _, port = server.partition(":")
    hint = f"This llama.cpp speaks {PROTOCOL[0]}.{PROTOCOL[1]}: build both from the same source."
    try:
        with socket.create_connection((host, int(port)), _SECONDS) as client:
            client.sendall(_HELLO)
            with client.makefile("rb") as reader:
                answer = reader.read(_ANSWER.size)
    except TimeoutError:
        text = f"The RPC server {server} does not answer within {_SECONDS:g} s."
        raise LocalspecError(text, "It serves one client at a time: end the other one.") from None
    except OSError as error:
        text = f"The RPC server {server} cannot be reached: {error.strerror or error}."
        raise LocalspecError(text, "Start llama.cpp's rpc-server there.") from None
    if len(answer) != _ANSWER.size:
        raise LocalspecError(f"{server} is no RPC server of llama.cpp, or one of another version.", hint)
    length, major, minor = _ANSWER.unpack(answer)
    if length != _ANSWER.size - 8 or major != PROTOCOL[0] or minor > PROTOCOL[1]:
        raise LocalspecError(f"The RPC server {server} speaks version {major}.{minor}.", hint)
