"""Requests to a server from threads: answers, and the end of those that wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from localspec.chat.turn import Message
from localspec.engine.slot import FinishReason
from localspec.errors import Cancelled, LocalspecError
from localspec.remote.answerer import Question
from localspec.remote.asking import Reply, Requests
from localspec.remote.server import Server
from tests.tui.endpoint import Endpoint, served

PROMPT = Question([Message("user", "Hi")])
SECONDS = 30.0
"""Longest wait of a test; nothing here takes so long."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with served(Endpoint()) as running:
        yield running
        running.hold.set()


class Reading:
    """A thread that reads an answer."""

    def __init__(self, requests: Requests) -> None:
        self.reply = Reply(requests, PROMPT, "m")
        self.parts: list[tuple[str, str]] = []
        self.some, self.error = threading.Event(), LocalspecError("none")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self.reply.read(self._take)
        except LocalspecError as error:
            self.error = error

    def _take(self, text: str, thinking: str) -> None:
        self.parts.append((text, thinking))
        self.some.set()

    def ended(self) -> bool:
        self._thread.join(SECONDS)
        return not self._thread.is_alive()


def until(seen: Callable[[], object]) -> None:
    for _ in range(round(SECONDS / 0.01)):
        if seen():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come")


def test_an_answer_with_its_figures(endpoint: Endpoint) -> None:
    endpoint.deltas = [{"role": "assistant"}, {"reasoning_content": "hm"}, {"content": "<think>so"}, {"content": "</"}]
    endpoint.deltas += [{"content": "think>Yes <"}]
    reading = Reading(Requests(Server(endpoint.url)))
    assert reading.ended()
    assert ["".join(texts) for texts in zip(*reading.parts, strict=True)] == ["Yes <", "hmso"]
    stats = reading.reply.stats
    assert (stats.prompt_tokens, stats.generated, reading.reply.finish) == (9, 5, FinishReason.STOP)
    assert stats.ttft_seconds > 0


def test_what_was_held_back_comes_after_an_error_too(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.body = 200, 'data: {"choices": [{"delta": {"content": "a <thi"}}]}\n\ndata: [3]\n\n'
    reading = Reading(Requests(Server(endpoint.url)))
    assert reading.ended()
    assert "".join(text for text, _ in reading.parts) == "a <thi"
    assert "not OpenAI's format" in str(reading.error)


@pytest.mark.parametrize("closed", [False, True])
def test_the_end_of_an_answer_that_is_waited_for(endpoint: Endpoint, closed: bool) -> None:
    endpoint.hold.clear()
    requests = Requests(Server(endpoint.url))
    reading = Reading(requests)
    until(lambda: endpoint.requests)
    if closed:
        requests.close()
    else:
        reading.reply.cancel()
    assert reading.ended()
    assert isinstance(reading.error, Cancelled)
    endpoint.hold.set()
    if closed:
        with pytest.raises(Cancelled):
            requests.models()
    else:
        assert requests.models() == ["served-model"]


def test_the_end_of_an_answer_in_its_middle_closes_the_connection(endpoint: Endpoint) -> None:
    endpoint.deltas, endpoint.pause = [{"content": "word "}] * 20_000, 0.01
    reading = Reading(Requests(Server(endpoint.url)))
    assert reading.some.wait(SECONDS)
    reading.reply.cancel()
    assert reading.ended()
    assert isinstance(reading.error, Cancelled)
    assert endpoint.broken.wait(SECONDS)


def test_one_that_was_cancelled_before_it_is_connected_sends_nothing(endpoint: Endpoint) -> None:
    reply = Reply(Requests(Server(endpoint.url)), PROMPT, "m")
    reply.cancel()
    with pytest.raises(Cancelled):
        reply.read(lambda text, thinking: None)
    assert endpoint.requests == []


def test_the_end_while_tls_is_agreed_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reading = Reading(Requests(Server(f"https://127.0.0.1:{listening.getsockname()[1]}")))
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(1)  # the client's hello, which stays without an answer
            reading.reply.cancel()
            assert reading.ended()
    assert isinstance(reading.error, Cancelled)


def test_a_connection_is_looked_at_before_anything_is_sent(endpoint: Endpoint) -> None:
    def refuse(connection: socket.socket) -> None:
        raise LocalspecError(f"not {connection.getpeername()[0]}")

    with pytest.raises(LocalspecError, match=r"not 127\.0\.0\.1"):
        Reply(Requests(Server(endpoint.url), met=refuse), PROMPT, "m").read(lambda text, thinking: None)
    assert endpoint.requests == []
