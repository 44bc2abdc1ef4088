"""The end of a server: signals, drained and cut-off streams, ports that are taken; over a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from localspec.cli import main
from localspec.errors import LocalspecError
from localspec.runtime.engine import Engine
from localspec.runtime.pool import Pool
from localspec.server.http import listen
from localspec.server.http.settings import ServerSettings
from tests.server.conftest import SLOTS
from tests.server.live import engine_of, events, running, user

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
ENDLESS = {"messages": [user("x")], "ignore_eos": True, "stream": True, "temperature": 1.0}


@contextmanager
def process(*options: str, key: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`localspec serve` on a free port, and its address once it is ready."""
    environment = os.environ | {"LOCALSPEC_API_KEY": key}
    command = [
        sys.executable,
        "-m",
        "localspec",
        "serve",
        "--port",
        "0",
        "--context",
        "512",
        "--exact",
        "off",
        *options,
    ]
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        found = re.search(r"http://[^ \"]+/v1", line)
        assert found, (line, started.stderr.read() if started.stderr and started.poll() is not None else "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        until = time.monotonic() + 60
        while httpx.get(found[0].replace("/v1", "/health"), headers=headers).status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        yield started, found[0]
    finally:
        started.kill()
        started.communicate()


def read_until_signalled(started: subprocess.Popen[str], url: str, sign: int, **fields: Any) -> list[Any]:
    """Events of a stream that is under way when a signal comes."""
    text = ""
    with httpx.stream("POST", f"{url}/chat/completions", json=ENDLESS | fields, timeout=60) as response:
        for part in response.iter_text():
            if text.count("data: ") < 3 <= (text + part).count("data: "):
                started.send_signal(sign)
            text += part
    return events(text)


def test_a_stream_that_takes_too_long_ends_with_an_error_and_done() -> None:
    """It is far too long to end by itself before the signal is there."""
    with process("--drain", "0", "--slots", "1") as (started, url):
        found = read_until_signalled(started, url, signal.SIGTERM, n=60)
        assert started.wait(30) == 0
        assert started.stderr is not None
        assert "Traceback" not in started.stderr.read()
    assert found[-1] == "[DONE]"
    assert found[-2]["error"]["code"] == "shutting_down"


def test_a_stream_that_ends_in_time_is_finished() -> None:
    with process("--drain", "30", "--slots", "1", "--json") as (started, url):
        found = read_until_signalled(started, url, signal.SIGINT, max_tokens=60)
        assert started.wait(30) == 0
        assert started.stderr is not None
        lines = [json.loads(line) for line in started.stderr.read().splitlines()]
    assert found[-1] == "[DONE]"
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert any(line.get("path") == "/v1/chat/completions" and line["status"] == 200 for line in lines)


def test_every_answer_under_way_hears_of_the_end(pool: Pool) -> None:
    """Whole and streamed, with a slot and without."""
    with ThreadPoolExecutor(2 * SLOTS) as crowd:
        with running(pool, ServerSettings(drain_seconds=0.0)) as server:
            bodies = [ENDLESS | {"stream": index % 2 == 0} for index in range(2 * SLOTS)]
            engine, held = engine_of(pool), threading.Event()
            crowd.submit(engine.on_engine_thread, held.wait)
            waiting = [crowd.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body) for body in bodies[1:]]
            while server.service.live["tiny"] < len(waiting):
                time.sleep(0.01)
            held.set()
        answers = [one.result(30) for one in waiting]
    for answer in answers:
        if answer.status_code == 200:
            *_, error, done = events(answer.text)
            assert done == "[DONE]"
            told = error["error"]
        else:
            assert answer.status_code == 503
            told = answer.json()["error"]
        assert told["code"] == "shutting_down"
    assert sorted(answer.status_code for answer in answers) == [200] * (SLOTS - 1) + [503] * SLOTS


def test_stop_ends_a_server_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    assert main(["stop"]) == 1
    assert capsys.readouterr().err == "localspec: No server of yours runs. `localspec serve` starts one.\n"
    with process("--quiet", "--slots", "1") as (one, url), process("--quiet") as (other, second):
        ports = [re.findall(r":(\d+)/", address)[0] for address in (url, second)]
        assert main(["ps"]) == 0
        rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]]
        assert sorted(rows) == sorted(
            [str(it.pid), "serve", port] for it, port in zip((one, other), ports, strict=True)
        )
        assert (main(["stop"]), main(["stop", "tiny"])) == (2, 2)
        assert main(["stop", "1"]) == 1
        told = capsys.readouterr().err.splitlines()
        assert told[0] == told[1]
        assert told[0].endswith("Say which one: localspec stop PORT")
        assert told[2].startswith("localspec: No server of yours is at '1', or has a model of that name. Running: tiny")
        assert main(["stop", ports[1]]) == 0
        assert capsys.readouterr().out == f"The server of tiny at {ports[1]} (process {other.pid}) has ended.\n"
        assert other.wait(10) == 0
        assert one.poll() is None
        assert main(["stop", "tiny"]) == 0
        assert one.wait(10) == 0
    assert main(["stop"]) == 1


def test_a_fault_while_the_model_loads_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that nobody foresaw: else it would say for ever that it loads."""
    monkeypatch.setattr(Engine, "load", lambda *_, **__: 1 // 0)
    with pytest.raises(LocalspecError, match=r"tiny cannot be served: .*by zero"):
        listen.serve(Pool(settings={}), ServerSettings(drain_seconds=0.0), listen.bind("127.0.0.1", 0))


def test_a_signal_while_the_model_loads_ends_it(tmp_path: Path) -> None:
    environment = os.environ | {"LOCALSPEC_DATA": str(tmp_path)}  # nothing is known yet, so loading takes seconds
    command = [sys.executable, "-m", "localspec", "serve", "--port", "0", "--slots", "3", "--quiet"]
    starting = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert starting.stdout is not None
    found = re.search(r"http://[^ ]+", starting.stdout.readline())
    assert found
    answer = httpx.get(found[0].replace("/v1", "/health"), timeout=30)  # so that it listens to signals by now
    assert answer.status_code in (503, 200)
    starting.send_signal(signal.SIGINT)
    _, told = starting.communicate(timeout=60)
    assert starting.returncode == 0
    assert told == ""
