"""Devices of other machines: what is said of servers that cannot be used, and which engines may use which devices."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec.errors import LocalspecError, UsageError
from localspec.llama.library import devices, lib
from localspec.runtime import memory
from localspec.runtime.engine import Engine
from tests.fake_gpus import CARD, GIB, list_gpus
from tests.server.live import COPIED, COPY

THERE = "10.0.0.7:50052"
FAR = lib.Device("RPC0", THERE, "gpu", 20 * GIB, 24 * GIB)


@contextmanager
def answering(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """A server's address, and what it was sent: it answers so, or not at all (None) until the test is over."""
    asked, over = list[bytes](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                asked.append(client.recv(1024))
                if answer is None:
                    over.wait(60)
                else:
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        over.set()
        thread.join()


def hello(major: int, minor: int) -> bytes:
    return struct.pack("=QBB26x", 28, major, minor)


def test_servers_are_read_from_the_setting() -> None:
    assert devices.servers(None) == []
    assert devices.servers("10.0.0.7:50052, far:1") == ["10.0.0.7:50052", "far:1"]


@pytest.mark.parametrize("text", ["", "far", "far:", ":50052", "far:0", "far:65536", "far:x", "far:1,", "[::1]:50052"])
def test_a_setting_that_names_no_server(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Engine.load(rpc=text)
    assert str(caught.value) == f"rpc is {text!r}; it must be HOST:PORT, or several with commas."


@pytest.mark.skipif(lib.api().llama_supports_rpc(), reason="this build has RPC")
def test_a_build_without_rpc_says_so() -> None:
    with pytest.raises(UsageError, match=r"rpc is 'far:1', but this llama.cpp was built without RPC"):
        Engine.load(rpc="far:1")


def test_a_server_of_this_version_is_greeted_as_llama_cpp_does() -> None:
    with answering(hello(*devices.PROTOCOL)) as (server, asked):
        devices.greet(server)
    assert asked == [b"\x0e" + (24).to_bytes(8, sys.byteorder) + bytes(24)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (hello(devices.PROTOCOL[0] + 1, 0), "speaks version 8.0"),
        (hello(*devices.PROTOCOL[:1], devices.PROTOCOL[1] + 1), "speaks version 7.1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no RPC server of llama.cpp"),
        (b"", "is no RPC server of llama.cpp"),
        (None, "does not answer within 0.2 s"),
    ],
)
def test_what_would_end_the_process_is_a_sentence(
    answer: bytes | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setattr(devices, "_SECONDS", 0.2)
    with answering(answer) as (server, _), pytest.raises(LocalspecError, match=said):
        devices.greet(server)


def test_a_server_that_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(LocalspecError, match=f"The RPC server {server} cannot be reached"):
        devices.greet(server)


def test_devices_of_servers_count_for_engines_that_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, FAR, CARD)
    monkeypatch.setattr(devices, "connect", devices.servers)  # it is connected already
    assert [one.name for one in memory.gpus()] == ["CUDA0"]
    assert [one.name for one in memory.gpus("far:1")] == ["CUDA0"]
    assert [one.name for one in memory.places(THERE)] == ["CPU", "RPC0", "CUDA0"]


_TRY = """
import ctypes, sys
from localspec.llama.library import lib
from localspec.cli import main
load = lib.c_function("ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p)
assert load(sys.argv[1].encode())
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.trial
@pytest.mark.skipif("LOCALSPEC_RPC_BUILD" not in os.environ, reason="no folder with libggml-rpc.so and rpc-server")
def test_a_real_server_computes_the_same_text(tmp_path: Path) -> None:
    folder = Path(os.environ["LOCALSPEC_RPC_BUILD"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with subprocess.Popen([folder / "rpc-server", "-H", "127.0.0.1", "-p", port]) as server:
        words = ["run", "--rpc", f"127.0.0.1:{port}", "--exact", "strict", "--temperature", "0", "--max-tokens", "40"]
        line = [sys.executable, "-c", _TRY, str(folder / "libggml-rpc.so"), *words, "--stats", COPY]
        try:
            done = subprocess.run(
                line, env=os.environ | {"LOCALSPEC_DATA": str(tmp_path)}, capture_output=True, text=True, timeout=250
            )
        finally:
            server.terminate()
    assert (done.returncode, done.stdout) == (0, COPIED + "\n"), done.stderr
    assert "exact: yes" in done.stderr
