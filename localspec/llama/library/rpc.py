"""llama.cpp's RPC backend: devices of other machines, where a build has it.

llama.cpp ends the process where a server is away or speaks another version, so each is asked first.
"""

from __future__ import annotations

import ctypes
import socket
import struct

from localspec.errors import LocalspecError, UsageError
from localspec.llama.library import lib

PROTOCOL = (7, 0)
"""Major and minor version of the protocol that the pinned llama.cpp speaks (ggml-rpc.h)."""
PREFIX = "RPC"
"""What llama.cpp's names of these devices begin with; their descriptions are HOST:PORT."""
_SECONDS = 5.0
"""For a server to answer; it serves one client at a time."""
_HELLO = struct.pack("=BQ24x", 14, 24)
"""The first request (ggml-rpc.cpp): number of the command, length of what follows, and no special transport."""
_ANSWER = struct.Struct("=QBB26x")
"""Its answer: length of what follows (28), major and minor version, and what does not matter here."""


def servers(text: str | None) -> list[str]:
    """HOST:PORT of every server in a setting such as "10.0.0.7:50052,10.0.0.8:50052"; None = none.

    Raises:
        UsageError: one of them does not look so.
    """
    found = [] if text is None else [word.strip() for word in text.split(",")]
    for word in found:
        host, _, port = word.partition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise UsageError(f"rpc is {text!r}; it must be HOST:PORT, or several with commas.")
    return found


def connect(text: str | None) -> list[str]:
    """Adds the devices of the servers to those of this process, where they stay; a second call adds none again.

    Returns:
        HOST:PORT of every server, as `servers`.

    Raises:
        UsageError: `text` names no servers, or this llama.cpp was built without RPC.
        LocalspecError: a server is away, busy, or speaks another version.
    """
    found = servers(text)
    if not found:
        return []
    backend = lib.c_function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(PREFIX.encode())
    if backend is None:
        raise UsageError(
            f"rpc is {text!r}, but this llama.cpp was built without RPC.",
            'Leave --rpc out, or build llama-cpp-python with CMAKE_ARGS="-DGGML_RPC=ON".',
        )
    known = {one.description for one in lib.devices() if one.name.startswith(PREFIX)}
    for server in found:
        if server not in known:
            greet(server)
            _add(backend, server)
            known.add(server)
    return found


def greet(server: str) -> None:
    """Says hello to a server.

    Raises:
        LocalspecError: see `connect`.
    """
    host, _, port = server.partition(":")
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
        raise LocalspecError(f"{server} is no RPC server of llama.cpp, or one of another version.", _advice())
    length, major, minor = _ANSWER.unpack(answer)
    if length != _ANSWER.size - 8 or major != PROTOCOL[0] or minor > PROTOCOL[1]:
        raise LocalspecError(f"The RPC server {server} speaks version {major}.{minor}.", _advice())


def _advice() -> str:
    return f"This llama.cpp speaks {PROTOCOL[0]}.{PROTOCOL[1]}: build both from the same source."


def _add(backend: int, server: str) -> None:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    address = lib.c_function("ggml_backend_reg_get_proc_address", pointer, pointer, text)
    add = ctypes.CFUNCTYPE(pointer, text)(address(backend, b"ggml_backend_rpc_add_server"))
    added = add(server.encode())
    if added is None:
        raise LocalspecError(f"The RPC server {server} has no devices.")
    lib.c_function("ggml_backend_register", None, pointer)(added)
