"""Requests that are meant to stop the server: /health answers all the while, and SIGTERM ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.grammar.test_grammar import alike
from tests.server.held import eventually
from tests.server.live import user
from tests.server.test_end import process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
RULES = "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(20_000)) + 'r20000 ::= "b"\n'
"""Its conversion takes minutes."""
CHAIN = {
    "$defs": {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(6000)}
    | {"d6000": {"type": "string"}},
    "$ref": "#/$defs/d0",
}
"""Its compilation takes the whole stack."""
LARGE = {"enum": [f"value {i}" for i in range(10_000)]}
"""It harms no one."""
ATTACKS: dict[str, tuple[dict[str, Any], int]] = {
    "rules": ({"grammar": RULES}, 400),
    "nested": ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, 400),
    "too long": ({"grammar": "root ::= " + '"a" ' * 200_000}, 400),
    "chain": ({"json_schema": CHAIN}, 400),
    "large": ({"json_schema": LARGE}, 200),
    "alike": ({"json_schema": alike(60)}, 400),
    "messages": ({"messages": [user("")] * 100_000}, 400),
    "parts": ({"messages": [user([{"type": "text", "text": ""}] * 200_000)]}, 400),
    "empty values": ({"metadata": [{}] * 2_000_000}, 413),
    "fields": ({f"f{i}": 1 for i in range(400_000)}, 200),
    "stops": ({"stop": ["x"] * 500_000}, 400),
    "biases": ({"logit_bias": {str(i): 1 for i in range(100_000)}}, 400),
    "tools": ({"tools": [{"type": "function", "function": {"name": "a"}}] * 50_000}, 400),
}


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with process("--drain", "1", "--quiet") as (started, url):
        yield started, url


def answers_meanwhile(url: str, done: threading.Event) -> tuple[int, float]:
    """How often /health answered until an event, and the longest it took."""
    count, longest = 0, 0.0
    with httpx.Client(timeout=60) as client:
        while not done.is_set() or not count:
            start = time.monotonic()
            assert client.get(url.replace("/v1", "/health")).status_code == 200
            longest = max(longest, time.monotonic() - start)
            count += 1
            time.sleep(0.01)
    return count, longest


@pytest.mark.parametrize("name", ATTACKS)
def test_health_answers_during_an_attack(attacked: tuple[subprocess.Popen[str], str], name: str) -> None:
    (fields, status), (_, url) = ATTACKS[name], attacked
    done = threading.Event()
    with ThreadPoolExecutor(1) as crowd:
        meanwhile = crowd.submit(answers_meanwhile, url, done)
        try:
            body = {"messages": [user("x")], "max_tokens": 1} | fields
            response = httpx.post(f"{url}/chat/completions", json=body, timeout=60)
        finally:
            done.set()
        count, longest = meanwhile.result()
    print(f"{name}: {response.status_code}, /health answered {count} times, {longest:.3f} s at the longest")
    assert response.status_code == status, response.text[:300]
    assert "Traceback" not in response.text
    if name == "rules":
        assert count > 50  # it took seconds, and the server went on
        assert "takes more than" in response.json()["error"]["message"]


def test_a_crowd_of_attacks_leaves_room_for_others() -> None:
    """They wait for one another, a few of them, and hold none of the threads that other requests need."""
    body = {"messages": [user("x")], "max_tokens": 1}
    small = body | {"grammar": 'root ::= "a"'}
    with process("--drain", "0", "--quiet") as (started, url), ThreadPoolExecutor(20) as crowd:
        bodies = [body | {"grammar": f"{RULES}# {number}"} for number in range(20)]
        waiting = [crowd.submit(httpx.post, f"{url}/chat/completions", json=one, timeout=60) for one in bodies]
        assert eventually(lambda: any(one.done() for one in waiting))  # one is refused because too many wait
        for other in (body, small):
            assert httpx.post(f"{url}/chat/completions", json=other, timeout=60).status_code == 200
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0
    codes = [one.result().json()["error"]["code"] for one in waiting]
    assert codes.count("overloaded") >= 10


@pytest.mark.parametrize("drain", ["0", "2"])
def test_a_signal_during_an_attack_ends_the_server(drain: str) -> None:
    with process("--drain", drain, "--quiet") as (started, url), ThreadPoolExecutor(3) as crowd:
        bodies = [{"messages": [user("x")], "grammar": f"{RULES}# {number}"} for number in range(3)]
        waiting = [crowd.submit(httpx.post, f"{url}/chat/completions", json=body, timeout=60) for body in bodies]
        time.sleep(1)
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0
        assert [one.result().status_code for one in waiting] == [503] * 3


STUCK = """
import ctypes, signal
from localspec.runtime.pool import Pool
from localspec.server.http import listen
from localspec.server.http.app import create_app
from localspec.server.http.settings import ServerSettings
listen._GRACE_SECONDS = 0.2
settings = ServerSettings(drain_seconds=0.1)
server = listen.EndpointServer(create_app(Pool(settings={}), settings), settings)
with server.capture_signals():
    signal.raise_signal(signal.SIGTERM)
    ctypes.PyDLL(None).sleep(60)
"""
"""A server that holds the interpreter's lock when a signal has come."""


def test_a_server_that_cannot_end_by_itself_is_ended() -> None:
    assert subprocess.run([sys.executable, "-c", STUCK], timeout=30, stderr=subprocess.DEVNULL).returncode == 1
