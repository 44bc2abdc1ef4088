"""Connections: clients that send no more and wait, those that are gone, and more of them than files may be open."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

from localspec.runtime.pool import Pool
from localspec.server.http import listen
from localspec.server.http.settings import ServerSettings
from tests.server.held import eventually
from tests.server.live import COPIED, COPY, Live, running, user


def request(stream: bool, **more: Any) -> bytes:
    body = json.dumps({"messages": [user(COPY)], "temperature": 0, "stream": stream} | more).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def rest(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_no_more_gets_its_answer(live: Live, stream: bool) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
        client.sendall(request(stream))
        client.shutdown(socket.SHUT_WR)
        said = rest(client).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"[DONE]" if stream else COPIED.encode()) in said


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_is_noticed(live: Live, stream: bool) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as client:
        client.sendall(request(stream, max_tokens=100_000, ignore_eos=True))
        assert eventually(lambda: sum(live.service.live.values()) == 1)
    assert eventually(lambda: not sum(live.service.live.values()))


def test_where_too_many_come_the_quiet_ones_are_closed(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    listen._warned.clear()
    settings = ServerSettings(drain_seconds=0.0, most_connections=8)
    with running(pool, settings) as live, caplog.at_level(logging.WARNING, "localspec.server"):
        idle = [socket.create_connection(("127.0.0.1", live.port), timeout=60) for _ in range(30)]
        assert live.chat(temperature=0).status_code == 200
        assert all(rest(one) == b"" for one in idle[:20]), "closed"
        for one in idle:
            one.close()
    assert len([record for record in caplog.records if "ulimit -n" in record.getMessage()]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -n of a shell")
def test_few_open_files_and_many_connections_are_a_line_of_the_log() -> None:
    words = f"ulimit -n 256; exec {sys.executable} -m localspec serve --port 0 --json --no-process"
    with subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = httpx.URL(json.loads(server.stdout.readline())["url"])
        idle = [socket.create_connection((url.host, url.port or 0), timeout=60) for _ in range(300)]
        body = {"messages": [user(COPY)], "temperature": 0}
        try:
            end = time.monotonic() + 60
            while httpx.get(url.join("/health")).status_code != 200:
                assert time.monotonic() < end
                time.sleep(0.1)
            answer = httpx.post(url.join("/v1/chat/completions"), json=body, timeout=60)
            assert answer.json()["choices"][0]["message"]["content"] == COPIED
        finally:
            server.terminate()
            _, said = server.communicate()
            for one in idle:
                one.close()
    assert "Traceback" not in said
    assert 1 <= said.count("ulimit -n") <= 2
