"""What a server hands on to the process of a model is answered as that process answers it, in every API."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.runtime.pool import Pool
from localspec.server.front.processes import Processes
from localspec.server.http.settings import ServerSettings
from tests.runner.conftest import until
from tests.server.live import COPIED, COPY, Live, error_of, running, user
from tests.server.test_process import child

LONG: dict[str, Any] = {"max_tokens": 7000, "temperature": 1.0, "stream": True}
ASKED = {"messages": [user(COPY)], "temperature": 0, "max_tokens": 40}
IDS = re.compile(
    r'"(?:id|created|created_at|completed_at|system_fingerprint|[a-z_]*(?:_ms|_second|_duration))": ?[^,}]*'
)
"""What differs between two answers to one question."""


@pytest.fixture(scope="module")
def front() -> Iterator[Live]:
    """A server over two models, each in a process of its own."""
    settings = ServerSettings(drain_seconds=0.0, aliases=("gpt-4",), max_body_bytes=100_000)
    processes = Processes(settings)
    pool = Pool("tiny", settings={"slots": 2, "context": 8192, "exact": "strict"}, make=processes.make)
    with running(pool, settings, processes=processes) as server:
        yield server
    pool.close()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", ASKED),
        ("/v1/completions", {"prompt": COPY, "max_tokens": 20, "temperature": 0}),
        ("/v1/messages", ASKED),
        ("/v1/responses", {"input": COPY, "temperature": 0}),
        ("/completion", {"prompt": COPY, "n_predict": 20, "temperature": 0}),
        ("/api/chat", {"messages": [user(COPY)], "options": {"temperature": 0}}),
        ("/api/generate", {"prompt": COPY, "options": {"temperature": 0}}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_it_says_what_a_server_with_the_models_says(
    front: Live, live: Live, path: str, asked: dict[str, Any], stream: bool
) -> None:
    there, here = (one.http.post(path, json=asked | {"stream": stream}) for one in (front, live))
    assert there.status_code == here.status_code == 200
    assert there.headers["content-type"] == here.headers["content-type"]
    assert COPIED.split()[0] in there.text
    kinds = [[line.partition(":")[0] for line in one.text.splitlines() if line[:1] != "{"] for one in (there, here)]
    assert set(kinds[0]) == set(kinds[1])


def test_strangers_fields_and_paths_of_the_program_itself_do_nothing(front: Live) -> None:
    answer = front.http.post("/v1/chat/completions", json=ASKED | {"localspec": {"id": "1", "raw": True}})
    assert answer.json()["choices"][0]["message"]["content"] == COPIED
    assert answer.headers["localspec-ignored-fields"] == "localspec"
    secret = {"Localspec-Own": child(front)._process.secret}  # type: ignore[union-attr]
    answer = front.http.post("/v1/chat/completions", json=ASKED | {"localspec": {"id": "1"}}, headers=secret)
    assert answer.headers["localspec-ignored-fields"] == "localspec"
    for path in ("life", "running", "stop", "end"):
        assert front.http.get(f"/localspec/{path}", headers=secret).status_code == 404


def test_names_bodies_and_methods_are_looked_at_before(front: Live) -> None:
    post = front.http.post
    assert post("/v1/chat/completions", json=ASKED | {"model": "gpt-4"}).json()["model"] == "tiny"
    assert error_of(post("/v1/chat/completions", json=ASKED | {"model": "nobody"}))["code"] == "model_not_found"
    assert post("/api/chat", json=ASKED | {"model": "nobody:latest"}).status_code == 404
    assert post("/api/chat", json={"messages": [user("x")], "model": "tiny:latest", "stream": False}).status_code == 200
    packed = gzip.compress(json.dumps(ASKED).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert post("/v1/chat/completions", content=packed, headers=headers).json()["choices"][0]["message"]["content"]
    assert post("/v1/chat/completions", json={"messages": [user("x" * 100_000)]}).status_code == 413
    assert (
        "not JSON"
        in error_of(post("/v1/chat/completions", content="{", headers={"Content-Type": "application/json"}))["message"]
    )
    assert error_of(post("/v1/chat/completions", json=ASKED | {"model": 5}))["param"] == "model"
    assert front.http.get("/v1/completions").status_code == 405
    assert front.http.post("/v1/rerank", json={"query": "x"}).status_code == 501
    assert front.http.head("/health").status_code == 200


def test_a_second_model_has_a_process_of_its_own_and_remembers_its_answers(front: Live) -> None:
    created = front.http.post(
        "/v1/responses", json={"model": "tiny-target", "input": "Hi", "max_output_tokens": 4}
    ).json()
    assert set(front.service.pool.loaded()) == {"tiny", "tiny-target"}
    found = front.http.get(f"/v1/responses/{created['id']}")
    assert found.json()["id"] == created["id"]
    assert front.http.delete(f"/v1/responses/{created['id']}").status_code == 200
    assert front.http.get(f"/v1/responses/{created['id']}").status_code == 404
    assert front.http.get("/slots?model=tiny-target").json()[0]["is_processing"] is False
    assert (
        front.http.post("/api/generate", json={"model": "tiny-target", "keep_alive": 0}).json()["done_reason"]
        == "unload"
    )
    assert set(front.service.pool.loaded()) == {"tiny"}
    assert (
        front.http.post("/api/generate", json={"model": "tiny-target", "keep_alive": 0}).json()["done_reason"]
        == "unload"
    )
    assert front.http.get("/slots?model=tiny-target").json() == []


def test_answers_are_counted_and_told(front: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "localspec.server"):
        before = metric(front, "localspec:answers_total")
        front.http.post("/v1/chat/completions", json=ASKED)
        until(lambda: metric(front, "localspec:answers_total") == before + 1)
    assert metric(front, "llamacpp:prompt_tokens_total") > 0
    assert sum("tiny answered: " in line for line in caplog.messages) == 1
    front.http.post("/v1/embeddings", json={"input": COPY})
    assert metric(front, "llamacpp:requests_processing") == 0


@pytest.mark.parametrize(
    ("path", "asked", "last"),
    [
        ("/v1/chat/completions", {"messages": [user("x")]}, "data: [DONE]"),
        ("/v1/messages", {"messages": [user("x")]}, '"type": "overloaded_error"'),
        ("/v1/responses", {"input": "x", "max_output_tokens": 7000}, '"type": "error"'),
        ("/api/chat", {"messages": [user("x")]}, '{"error": "The process'),
    ],
)
def test_a_death_is_the_last_event_of_a_stream_in_its_apis_form(
    front: Live, path: str, asked: dict[str, Any], last: str
) -> None:
    asked = asked | {"stream": True, "ignore_eos": True} | ({} if "input" in asked else {"max_tokens": 7000})
    if path.startswith("/api/"):
        asked = {"messages": asked["messages"], "options": {"num_predict": 7000, "ignore_eos": True}}
    assert front.chat(temperature=0).status_code == 200  # so that a death is mended
    with front.http.stream("POST", path, json=asked) as reply:
        lines = reply.iter_lines()
        next(lines)
        old = child(front).pid
        os.kill(old, signal.SIGKILL)
        rest = [line for line in lines if line]
    assert last in rest[-1]
    assert "was killed (SIGKILL)" in "\n".join(rest[-3:])
    until(lambda: child(front).pid not in (0, old))


def metric(live: Live, name: str) -> float:
    """The sum of a counter."""
    page = live.http.get("/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)", page, re.MULTILINE))
