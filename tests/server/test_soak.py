"""The soak: many clients, most of them rude, against one server for minutes. LOCALSPEC_SOAK_SECONDS sets how long."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.server.live import COPIED, COPY, user
from tests.server.rude_clients import CHAT, Client

SECONDS = float(os.environ.get("LOCALSPEC_SOAK_SECONDS", "600"))
CLIENTS, SLOTS, WARM_UP = 16, 4, 0.4
"""WARM_UP: share of the time after which memory must stay where it is."""
GROWTH = 1.05


@dataclass
class Process:
    """A server in a process of its own."""

    popen: subprocess.Popen[str]
    url: str
    log: Path

    def resident(self) -> int:
        """Bytes of memory in use (Linux)."""
        pages = Path(f"/proc/{self.popen.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    log = tmp_path / "server.log"
    command = [
        "serve",
        "--json",
        "--quiet",
        "--port",
        "0",
        "--slots",
        str(SLOTS),
        "--context",
        "1024",
        "--max-body",
        "1",
    ]
    with log.open("w") as file:
        popen = subprocess.Popen(
            [sys.executable, "-m", "localspec", *command], stdout=subprocess.PIPE, stderr=file, text=True
        )
        try:
            assert popen.stdout is not None
            url = json.loads(popen.stdout.readline())["url"].removesuffix("/v1")
            yield Process(popen, url, log)
        finally:
            popen.kill()
            popen.wait()
            if popen.stdout is not None:
                popen.stdout.close()


async def soak(server: Process, done: Counter[str], memory: list[tuple[float, int]]) -> None:
    """All clients at once, until the time is over; any of them that sees something wrong ends it."""
    limits = httpx.Limits(max_connections=CLIENTS * 2)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        while (await http.get("/health")).status_code == 503:
            await asyncio.sleep(0.1)
        start = time.monotonic()

        async def play(number: int) -> None:
            client = Client(http, number, 1 << 20)
            while time.monotonic() - start < SECONDS:
                done[await client.act()] += 1

        async def watch() -> None:
            while time.monotonic() - start < SECONDS:
                assert server.popen.poll() is None, "the server is gone"
                memory.append(((time.monotonic() - start) / SECONDS, server.resident()))
                await asyncio.sleep(SECONDS / 200)

        await asyncio.gather(watch(), *(play(number) for number in range(CLIENTS)))


def gauge(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def busy(http: httpx.Client) -> float:
    text = http.get("/metrics").text
    return gauge(text, "llamacpp:requests_processing") + gauge(text, "llamacpp:requests_deferred")


@pytest.mark.trial
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read as Linux shows it")
def test_rude_clients_bring_nothing_down(server: Process) -> None:
    done: Counter[str] = Counter()
    memory: list[tuple[float, int]] = []
    asyncio.run(soak(server, done, memory))
    with httpx.Client(base_url=server.url, timeout=60) as http:
        until = time.monotonic() + 20
        while busy(http) and time.monotonic() < until:
            time.sleep(0.05)
        assert busy(http) == 0, "a slot is stuck"
        for _ in range(SLOTS):
            body = http.post(CHAT, json={"messages": [user(COPY)], "temperature": 0}).json()
            assert body["choices"][0]["message"]["content"] == COPIED
    before = max(size for share, size in memory if share < WARM_UP)
    after = max(size for share, size in memory if share >= WARM_UP)
    print(f"{sum(done.values())} actions in {SECONDS:g} s: {dict(done)}")
    print(f"memory: {memory[0][1] >> 20} MiB at first, {before >> 20} MiB warm, {after >> 20} MiB at most later")
    server.popen.terminate()
    assert server.popen.wait(30) == 0
    log = server.log.read_text(encoding="utf-8")
    assert "Traceback" not in log
    assert "internal error" not in log
    assert after <= before * GROWTH
