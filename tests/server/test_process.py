"""A server whose models are in a process of their own: the same answers, and whatever ends the process, it goes on."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from localspec.runner.child import Child
from localspec.runtime.pool import Pool
from localspec.server.front import Processes
from localspec.server.http.settings import ServerSettings
from tests.runner.conftest import lives, until
from tests.server.live import COPIED, COPY, RECORD, RECORDED, Live, running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")
LONG: dict[str, Any] = {"prompt": "One day", "max_tokens": 7000, "ignore_eos": True, "temperature": 1.0}
SCHEMA = {"type": "object", "properties": {"date": {"type": "string"}, "host": {"type": "string"}}}


@pytest.fixture(scope="module")
def apart() -> Iterator[Live]:
    """A server over the bundled pair, whose models are elsewhere."""
    settings = ServerSettings(drain_seconds=0.0)
    processes = Processes(settings)
    pool = Pool(settings={"slots": 4, "context": 8192, "exact": "strict"}, make=processes.make)
    with running(pool, settings, processes=processes) as server:
        yield server
    pool.close()


def child(live: Live) -> Child:
    found = live.service.pool.loaded()["tiny"]
    assert isinstance(found, Child)
    return found


def answers(live: Live) -> int:
    """Under way, as the process says."""
    page = live.http.get("/metrics").text
    return sum(int(float(count)) for count in re.findall(r"^llamacpp:requests_\w+ (\S+)", page, re.MULTILINE))


def kill(live: Live) -> None:
    """Ends the process of the models, and waits for the next one."""
    old = child(live).pid
    os.kill(old, signal.SIGKILL)
    until(lambda: child(live).pid not in (0, old))


def test_answers_are_those_of_models_in_the_same_process(apart: Live, live: Live) -> None:
    assert apart.chat(temperature=0).json()["choices"][0]["message"]["content"] == COPIED
    for temperature in (0.0, 1.0):
        body = {"max_tokens": 40, "seed": 7, "temperature": temperature, "logprobs": 2}
        there, here = (one.complete(COPY, **body).json() for one in (apart, live))
        assert there["choices"] == here["choices"]
        assert there["usage"]["completion_tokens"] == here["usage"]["completion_tokens"]


def test_a_schema_is_kept(apart: Live) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "event", "schema": SCHEMA}}
    answer = apart.chat(RECORD, temperature=0, response_format=asked).json()
    assert httpx.Response(200, text=answer["choices"][0]["message"]["content"]).json() == RECORDED


@pytest.mark.parametrize("path", ["/props", "/v1/models", "/slots", "/metrics", "/api/ps", "/health"])
def test_what_is_told_of_a_model_is_told(apart: Live, path: str) -> None:
    assert apart.http.get(path).status_code == 200


def test_texts_are_read_there(apart: Live, live: Live) -> None:
    there, here = (one.http.post("/v1/embeddings", json={"input": COPY}).json() for one in (apart, live))
    assert there["data"] == here["data"]
    there, here = (one.http.post("/tokenize", json={"content": COPY}).json() for one in (apart, live))
    assert there == here


def test_a_client_that_leaves_ends_its_answer(apart: Live) -> None:
    with apart.http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
        next(response.iter_lines())
    until(lambda: not answers(apart))


def test_death_under_streams_ends_each_with_an_error_and_the_next_request_is_answered(apart: Live) -> None:
    assert apart.chat(temperature=0).status_code == 200
    ask, death = (
        partial(apart.http.post, "/v1/completions"),
        "The process that computes tiny-target-q8_0.gguf was killed",
    )
    with (
        ThreadPoolExecutor(10) as crowd,
        apart.http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as begun,
    ):
        lines = begun.iter_lines()
        next(lines)
        os.kill(child(apart).pid, signal.SIGSTOP)  # so that none comes to its end meanwhile
        waiting = [crowd.submit(ask, json=LONG | {"stream": index > 0}) for index in range(8)]
        until(lambda: len(child(apart)._process.uses) == 9)  # type: ignore[union-attr]
        kill(apart)
        whole, *streams = [one.result() for one in waiting]
        for text in ("\n".join(lines), *(one.text for one in streams)):
            assert death in text
    assert whole.status_code == 503
    assert whole.headers["Retry-After"]
    assert whole.json()["error"]["message"].startswith(death)
    assert 'localspec:answers_total{exact="false",finish="error",model="tiny"} 9.0' in apart.http.get("/metrics").text
    assert apart.chat(temperature=0).json()["choices"][0]["message"]["content"] == COPIED


@pytest.mark.trial
def test_many_deaths_at_random_moments_under_streams(apart: Live) -> None:
    rng, short = random.Random(9), LONG | {"max_tokens": 120}
    for _ in range(50):
        assert apart.chat(temperature=0).status_code == 200
        with ThreadPoolExecutor(8) as crowd:
            asked = [
                crowd.submit(apart.http.post, "/v1/completions", json=short | {"stream": index % 2 > 0})
                for index in range(8)
            ]
            time.sleep(rng.random() * 0.6)
            if pid := child(apart).pid:
                os.kill(pid, rng.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)))
            found = [one.result() for one in asked]
        assert {one.status_code for one in found} <= {200, 503}
        for one in found:
            streamed = one.headers["content-type"].startswith("text/event-stream")
            ended = "[DONE]" in one.text or "The process that computes" in one.text
            assert ended if streamed else one.json().keys() & {"choices", "error"}
    assert apart.chat(temperature=0).json()["choices"][0]["message"]["content"] == COPIED


def test_a_process_that_dies_twice_is_replaced_by_the_next_request(apart: Live) -> None:
    assert apart.chat(temperature=0).status_code == 200
    kill(apart)
    os.kill(child(apart).pid, signal.SIGKILL)
    until(lambda: child(apart).outdated != "")
    assert apart.chat(temperature=0).json()["choices"][0]["message"]["content"] == COPIED


def test_the_command_serves_so_and_leaves_nothing(tmp_path: Any) -> None:
    command = [sys.executable, "-m", "localspec", "serve", "--process", "--port", "0", "--slots", "1"]
    environment = os.environ | {"LOCALSPEC_DATA": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as it:
        try:
            assert it.stdout is not None
            url = re.findall(r"(http://\S+)/v1 ", it.stdout.readline())[0]
            until(lambda: httpx.get(f"{url}/health").status_code == 200)
            (child,) = _children(it.pid)
            body = {"messages": [{"role": "user", "content": COPY}], "temperature": 0}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
            assert answer["choices"][0]["message"]["content"] == COPIED
            it.send_signal(signal.SIGINT)
            assert it.wait(30) == 0
        finally:
            it.kill()
    until(lambda: not lives(child))


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="ascii").split()]
