"""Ollama's /api/pull: a real server installs a model of the local hub, tells its progress, and answers with it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.hub.conftest import PAIR, Program
from tests.hub.server import LocalHub, sha256
from tests.server.held import eventually


@contextmanager
def served(program: Program, *more: str) -> Iterator[httpx.Client]:
    """A server of the program's, which has only the bundled pair."""
    process = program.start("serve", "--port", "0", "--json", "--context", "512", *more)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = str(json.loads(line)["url"]).removesuffix("/v1")
        with httpx.Client(base_url=url, timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=60)


def lines(client: httpx.Client, name: str) -> list[dict[str, Any]]:
    response = client.post("/api/pull", json={"model": name})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_model_is_installed_and_answers(program: Program, local_hub: LocalHub, target_bytes: bytes) -> None:
    with served(program, "--allow-pull") as client:
        first, *between, last = lines(client, PAIR[0])
        assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
        coming = [state for state in between if state["status"].startswith("pulling")]
        assert {state["digest"] for state in coming} == {f"sha256:{sha256(target_bytes)}"}
        assert {state["total"] for state in coming} == {len(target_bytes)}
        assert coming[-1]["completed"] == len(target_bytes)
        assert any(state["status"].startswith("verifying sha256 digest") for state in between)
        tags = {one["name"]: one for one in client.get("/api/tags").json()["models"]}
        (name,) = set(tags) - {"tiny"} - {one for one in tags if one.startswith("tiny-")}
        assert tags[name]["digest"] == sha256(target_bytes)
        assert tags[name]["size"] == len(target_bytes)
        said = client.post("/api/generate", json={"model": name, "prompt": "Hi", "options": {"num_predict": 2}})
        assert json.loads(said.text.splitlines()[-1])["eval_count"] == 2
        assert lines(client, name) == [first, last]
        whole = client.post("/api/pull", json={"name": PAIR[1], "stream": False})
        assert whole.json() == {"status": "success"}


def test_errors_are_one_sentence(program: Program, local_hub: LocalHub) -> None:
    with served(program, "--allow-pull") as client:
        *_, last = lines(client, "us/nothing-GGUF")
        assert set(last) == {"error"}
        assert "us/nothing-GGUF" in last["error"]
        refused = client.post("/api/pull", json={"model": "us/nothing-GGUF", "stream": False})
        assert refused.status_code >= 400
        assert refused.json() == last
        for name in ("https://example.org/x.gguf", ""):
            wrong = client.post("/api/pull", json={"model": name})
            assert (wrong.status_code, set(wrong.json())) == (400, {"error"})


def test_a_client_that_leaves_stops_it(program: Program, local_hub: LocalHub) -> None:
    local_hub.faults.seconds_per_block, local_hub.faults.block = 0.02, 16 << 10
    with served(program, "--allow-pull") as client:
        with client.stream("POST", "/api/pull", json={"model": PAIR[0]}) as response:
            for line in response.iter_lines():
                if json.loads(line).get("completed"):
                    break

        def stands() -> bool:
            before = local_hub.bytes_sent()
            time.sleep(2.0)  # a hundred blocks
            return local_hub.bytes_sent() == before

        assert eventually(stands)
        local_hub.faults.seconds_per_block = 0.0
        assert len(client.get("/api/tags").json()["models"]) == len(client.get("/v1/models").json()["data"])
        assert PAIR[0].lower() not in client.get("/api/tags").text.lower()
        assert eventually(
            lambda: bool(list(program.cache.rglob("*.localspec*")) or list(program.cache.rglob("*incomplete")))
        )
        assert lines(client, PAIR[0])[-1] == {"status": "success"}


def test_a_server_installs_nothing_unless_it_was_told_to(program: Program, local_hub: LocalHub) -> None:
    with served(program) as client:
        refused = client.post("/api/pull", json={"model": PAIR[0]})
        assert refused.status_code == 403
        assert "--allow-pull" in refused.json()["error"]
        assert lines(client, "tiny")[-1] == {"status": "success"}
