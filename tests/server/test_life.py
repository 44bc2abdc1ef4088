"""A process tells what becomes of its models, and ends with its last listener."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from localspec.errors import heard
from localspec.runner.own_socket import HEADER, OwnSocket
from localspec.runtime.engine import Engine
from localspec.runtime.pool import Pool
from localspec.server.own.life import Life
from localspec.server.own.serve import serve

SECRET = "of this test"
pytestmark = pytest.mark.usefixtures("runtime")
Client = httpx.Client


@contextmanager
def served(pool: Pool) -> Iterator[tuple[Client, threading.Thread]]:
    """A client of a process that is a thread."""
    place, life = OwnSocket(), Life(pool)
    life.load()
    thread = threading.Thread(target=serve, args=(life, place.socket, SECRET))
    thread.start()
    transport = httpx.HTTPTransport(uds=str(place.path))
    try:
        with Client(transport=transport, base_url="http://own", headers={HEADER: SECRET}, timeout=60) as client:
            yield client, thread
    finally:
        life.ending = True
        thread.join(60)
        place.close()
    assert not thread.is_alive()


def told(lines: Iterator[str], event: str) -> dict[str, Any]:
    """The next line of an event."""
    return next(one for one in map(json.loads, lines) if one["event"] == event)


def test_who_listens_hears_of_loading_facts_state_and_a_pulse() -> None:
    with served(Pool(settings={"slots": 1, "context": 512})) as (client, thread):
        with client.stream("GET", "/localspec/life") as heard_first:
            lines = heard_first.iter_lines()
            ready = told(lines, "ready")
            assert Path(ready["target"]).name == "tiny-target-q8_0.gguf"
            assert (ready["context"], ready["slots"], ready["completes"]) == (512, 1, False)
            assert told(lines, "pulse")["silent"] == 0
            with client.stream("GET", "/localspec/life") as heard_later:
                kept = heard_later.iter_lines()
                events = [json.loads(next(kept))["event"] for _ in range(3)]
                assert {"state", "ready"} <= set(events)
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
            told(lines, "pulse")
            assert thread.is_alive()  # one listener is left
        thread.join(60)
        assert not thread.is_alive()


def test_a_model_that_cannot_be_loaded_is_an_error_that_is_told(tmp_path: Path) -> None:
    file = tmp_path / "no.gguf"
    file.write_bytes(Path(Engine.load.__code__.co_filename).read_bytes())
    with served(Pool(str(file))) as (client, _), client.stream("GET", "/localspec/life") as listening:
        failed = told(listening.iter_lines(), "failed")
        del failed["event"]
        assert "no.gguf" in heard(**failed).message


def test_it_ends_when_it_is_told_to_while_it_answers() -> None:
    with served(Pool(settings={"slots": 1})) as (client, thread), client.stream("GET", "/localspec/life") as life:
        lines = life.iter_lines()
        told(lines, "ready")
        body = {"prompt": "Sort: 4, 2", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            assert client.post("/localspec/end").status_code == 202
            thread.join(60)
        assert not thread.is_alive()
        list(lines)  # it has an end


def test_models_load_before_a_server_is_imported_and_an_answer_needs_no_pydantic() -> None:
    script = """
import os, sys
from localspec.server.own.__main__ import begin
settings = {"slots": 1, "context": 512}
life, place = begin(
    {"parent": os.getppid(), "target": None, "draft": None, "heads": (), "settings": settings, "called": None}
)
early = {"asyncio", "starlette", "uvicorn"} & set(sys.modules)
import localspec.server.own.serve
print(early | {"pydantic", "fastapi", "prometheus_client"} & set(sys.modules))
life.close()
place.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
