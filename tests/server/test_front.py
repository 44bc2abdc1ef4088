"""What a server hands on to the process of a model is answered as that process answers it, in every API."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import ResponseErrorEvent

from localspec.errors import RunnerError
from localspec.runtime.pool import Pool
from localspec.server.front import Processes, error_event
from localspec.server.http.settings import ServerSettings
from tests.runner.conftest import until
from tests.server.live import COPIED, COPY, Live, error_of, running, user
from tests.server.test_process import LONG, child

ASKED = {"messages": [user(COPY)], "temperature": 0, "max_tokens": 40}

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def front() -> Iterator[Live]:
    """A server over two models, each in a process of its own."""
    settings = ServerSettings(drain_seconds=0.0, aliases=("gpt-4",), max_body_bytes=3_000_000, max_queue=0)
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
    assert said(there.text) == said(here.text)


def said(text: str) -> str:
    """All texts of an answer, of whatever API."""
    return "".join(re.findall(r'"(?:content|text|response|delta)": ?"((?:[^"\\]|\\.)*)"', text))


def test_strangers_fields_and_paths_of_the_program_itself_do_nothing(front: Live) -> None:
    answer = front.http.post("/v1/chat/completions", json=ASKED | {"localspec": {"id": "1", "raw": True}})
    assert answer.json()["choices"][0]["message"]["content"] == COPIED
    assert answer.headers["localspec-ignored-fields"] == "localspec"
    secret = child(front)._process.headers  # type: ignore[union-attr]
    assert list(secret) == ["Localspec-Own"]
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
    headers = JSON | {"Content-Encoding": "gzip"}
    assert post("/v1/chat/completions", content=packed, headers=headers).json()["choices"][0]["message"]["content"]
    many = post("/v1/chat/completions", content=b'{"a": [%s0]}' % (b"0," * (1 << 20)), headers=JSON)
    assert (many.status_code, "commas" in error_of(many)["message"]) == (413, True)
    assert "not JSON" in error_of(post("/v1/chat/completions", content="{", headers=JSON))["message"]
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


def test_a_full_queue_says_when_to_come_back(front: Live) -> None:
    asked = LONG | {"stream": True, "speculative.drafter": "none"}
    with (
        front.http.stream("POST", "/v1/completions", json=asked) as one,
        front.http.stream("POST", "/v1/completions", json=asked) as two,
    ):
        under_way = one.iter_lines(), two.iter_lines()  # closed with their last reader
        assert all(next(lines) for lines in under_way)
        refused = front.chat()
    assert refused.status_code == 503, refused.text
    assert refused.headers["retry-after"] == "2"
    assert metric(front, "localspec:refused_requests_total") == 1
    until(lambda: not metric(front, "llamacpp:requests_processing"))


def test_answers_are_counted_and_told(front: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "localspec.server"):
        before = metric(front, "localspec:answers_total")
        front.http.post("/v1/chat/completions", json=ASKED)
        until(lambda: metric(front, "localspec:answers_total") == before + 1)
        until(lambda: any("tiny answered: " in line for line in caplog.messages))  # told after it is counted
    assert metric(front, "llamacpp:prompt_tokens_total") > 0
    assert sum("tiny answered: " in line for line in caplog.messages) == 1
    front.http.post("/v1/embeddings", json={"input": COPY})
    assert metric(front, "llamacpp:requests_processing") == 0


@pytest.mark.parametrize(
    ("path", "begun", "said"),
    [
        ("/v1/chat/completions", b"data: {}\n\n", 'data: {"error": {"message": "It is gone."'),
        ("/completion", b"data: {", '\n\ndata: {"error": {"message": "It is gone."'),
        (
            "/v1/messages",
            b"data: {}\n\n",
            'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", ',
        ),
        ("/v1/responses", b"data: {}\n\n", 'event: error\ndata: {"type": "error", "code": "overloaded", '),
        ("/api/chat", b"{}\n", '{"error": "It is gone."}\n'),
        ("/api/chat", b"{", '\n{"error": "It is gone."}\n'),
        ("/api/v0/chat/completions", b"data: {}\n\n", 'data: {"error": {"message": "It is gone."'),
    ],
)
def test_a_death_is_the_last_event_of_a_stream_in_its_apis_form(path: str, begun: bytes, said: str) -> None:
    told = error_event(RunnerError("It is gone."), path, begun[-2:])
    assert told.startswith(said)
    assert told.endswith("\n")
    if "responses" in path:
        event = ResponseErrorEvent.model_validate_json(told.split("data: ")[1])
        assert (event.type, event.code, event.message) == ("error", "overloaded", "It is gone.")


def metric(live: Live, name: str) -> float:
    """The sum of a counter."""
    page = live.http.get("/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)", page, re.MULTILINE))
