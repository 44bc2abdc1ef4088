"""Bodies and heads that are too large or too slow, what is no HTTP, and paths that are not there."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.llama.model import Model
from localspec.runtime.pool import Pool
from localspec.server.http import listen
from localspec.server.http.settings import ServerSettings
from localspec.types import Tokens
from tests.grammar.test_grammar import alike
from tests.server.conftest import CONTEXT
from tests.server.held import eventually
from tests.server.live import Live, error_of, running, user

BODY = 4096
LONG = "long " * 200_000
MARKS = "<|end|>" * (2 * CONTEXT)
FULL = f"maximum context length is {CONTEXT} tokens"
PREDICTED = {"messages": [user("x")], "prediction": {"type": "content", "content": LONG}}


@pytest.fixture(scope="module")
def strict(pool: Pool) -> Iterator[Live]:
    """A server that takes little."""
    with running(pool, ServerSettings(max_body_bytes=BODY, max_header_bytes=2048, drain_seconds=0.0)) as server:
        yield server


def raw(server: Live, *pieces: bytes) -> bytes:
    """What the server says to these bytes until it closes the connection, which drops what it did not read."""
    answer = b""
    with (
        suppress(ConnectionResetError),
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
    ):
        for piece in pieces:
            connection.sendall(piece)
        while data := connection.recv(65536):
            answer += data
    return answer


def head(server: Live, *lines: str) -> bytes:
    return "\r\n".join(("POST /v1/completions HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *lines, "", "")).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def message(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"])


def test_a_large_body_is_refused_before_it_comes(strict: Live) -> None:
    answer = raw(strict, head(strict, "Content-Type: application/json", f"Content-Length: {BODY + 1}"))
    assert status(answer) == 413
    assert str(BODY) in message(answer)


def test_a_large_body_without_a_length_is_refused(strict: Live) -> None:
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    start = head(strict, "Content-Type: application/json", "Transfer-Encoding: chunked")
    assert status(raw(strict, start, *[chunk] * 5)) == 413


def test_a_body_of_the_limit_is_read(strict: Live) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'.ljust(BODY)
    response = strict.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200


def test_slow_heads_and_bodies_are_given_up(pool: Pool) -> None:
    """All at once, so that the waiting is done once."""
    settings = ServerSettings(head_seconds=3.0, body_seconds=1.0, drain_seconds=0.0)
    with running(pool, settings) as server, ThreadPoolExecutor(4) as crowd:
        start = head(server, "Content-Type: application/json", "Content-Length: 100")
        body = crowd.submit(raw, server, start, b'{"prompt"')
        nothing = crowd.submit(raw, server, b"")
        part = crowd.submit(raw, server, b"GET / HTTP/1.1\r\nHost: loc")
        first = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
        second = crowd.submit(raw, server, first + b"GET /hea")
    assert status(body.result()) == 408
    assert "1 seconds" in message(body.result())
    assert nothing.result() == part.result() == b""
    assert status(second.result()) == 200
    assert second.result().endswith(b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/chat/completions", {"messages": [user(LONG)]}, FULL),
        ("/v1/chat/completions", {"messages": [user(MARKS)], "stream": True}, FULL),
        ("/v1/chat/completions", PREDICTED, "prediction does not fit"),
        ("/v1/chat/completions", {"messages": [user("x")], "logit_bias": {MARKS: 1}}, "at most 1024 are read"),
        ("/v1/chat/completions/input_tokens", {"messages": [user(MARKS)]}, FULL),
        ("/v1/messages", {"messages": [user(LONG)], "max_tokens": 1}, FULL),
        ("/v1/responses", {"input": MARKS}, FULL),
        ("/v1/completions", {"prompt": ["x", LONG]}, FULL),
        ("/v1/completions", {"prompt": MARKS}, FULL),
        ("/v1/completions", {"prompt": "x", "suffix": LONG}, FULL),
        ("/v1/embeddings", {"input": ["x", LONG]}, FULL),
        ("/tokenize", {"content": MARKS * 10}, FULL),
    ],
)
def test_what_surely_does_not_fit_is_not_made_into_tokens(
    live: Live, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], said: str
) -> None:
    """It would take minutes for megabytes of special tokens, on a thread that all routes share."""
    lengths = [0]
    tokenize = Model.tokenize

    def counted(self: Model, text: str, **how: bool) -> Tokens:
        lengths.append(len(text))
        return tokenize(self, text, **how)

    monkeypatch.setattr(Model, "tokenize", counted)
    response = live.http.post(path, json=body)
    assert response.status_code == 400
    assert said in response.text
    assert max(lengths) < 1000


def test_a_prompt_that_surely_does_not_fit_is_refused_as_others_are(live: Live) -> None:
    for prompt in (LONG, MARKS):
        error = error_of(live.complete(prompt))
        assert (error["type"], error["code"]) == ("exceed_context_size_error", "context_length_exceeded")
        assert error["n_prompt_tokens"] > error["n_ctx"] == CONTEXT
        assert f"at least {error['n_prompt_tokens']} tokens" in error["message"]


def test_texts_beyond_the_context_can_still_be_tokenized(live: Live) -> None:
    response = live.http.post("/tokenize", json={"content": "long " * (2 * CONTEXT)})
    assert len(response.json()["tokens"]) > CONTEXT


@pytest.mark.parametrize("size", [2048, 100_000, 1_000_000])
def test_a_long_head_is_refused(strict: Live, size: int) -> None:
    answer = raw(strict, head(strict, f"X-Long: {'x' * size}"))
    assert status(answer) == 431
    assert "2048 bytes" in message(answer)


def test_a_client_that_never_reads_is_cut_off(pool: Pool) -> None:
    """The system takes 8 KB at most of what is sent here; the rest waits, and the answers end with their client."""
    listening = listen.bind("127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    settings = ServerSettings(write_seconds=0.3, drain_seconds=0.0)
    sent = {"prompt": "x", "ignore_eos": True, "stream": True, "logprobs": 20, "speculative": {"enabled": False}}
    with running(pool, settings, listening=listening) as server, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        body = json.dumps(sent | {"n": 60}).encode()  # far more than can be said in the time
        deaf.sendall(head(server, "Content-Type: application/json", f"Content-Length: {len(body)}") + body)
        assert eventually(lambda: server.service.live["tiny"] == 60)
        assert eventually(lambda: not server.service.live["tiny"])
        metrics = server.http.get("/metrics").text
    assert 'finish="cancelled",model="tiny"' in metrics


def test_what_is_no_http_is_told_so(strict: Live) -> None:
    answer = raw(strict, b"\x16\x03\x01 hello\r\n\r\n")
    assert status(answer) == 400
    assert message(answer) == "This is no HTTP request: illegal request line."
    assert "Host" in message(raw(strict, b"GET /health HTTP/1.1\r\n\r\n"))
    assert "Host" in message(raw(strict, b"GET /health HTTP/1.0\r\nConnection: close\r\n\r\n"))


def test_the_server_still_answers(strict: Live) -> None:
    assert strict.http.get("/health").status_code == 200
    assert strict.complete("x", max_tokens=1).status_code == 200


def test_unknown_paths_and_methods_have_the_error_shape(live: Live) -> None:
    response = live.http.get("/v2/nothing")
    assert response.status_code == 404
    assert error_of(response)["type"] == "not_found_error"
    response = live.http.get("/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    error_of(response)
    assert live.http.head("/health").status_code == 200  # as `wget --spider` asks in containers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 65536),
        ("port", -1),
        ("max_queue", -1),
        ("max_body_bytes", 0),
        ("max_header_bytes", 1),
        ("body_seconds", 0.0),
        ("head_seconds", -1.0),
        ("write_seconds", 0.0),
        ("ping_seconds", float("nan")),
        ("drain_seconds", -1.0),
    ],
)
def test_impossible_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        ServerSettings(**{name: value})  # type: ignore[arg-type]


def test_a_schema_that_becomes_too_complex_while_answering_is_the_requests_error(live: Live) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": alike(60)}}
    fields: dict[str, Any] = {"response_format": form, "max_tokens": 20, "seed": 1}
    response = live.chat(**fields)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert "schema became too complex while the answer was written" in error["message"]
    *_, event, done = live.stream("/v1/chat/completions", messages=[user("Hi")], **fields)
    assert (event["error"], done) == (error, "[DONE]")
    assert live.chat(temperature=0, max_tokens=30).status_code == 200
