"""Requests to a server from threads: answers, and the end of those that wait."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from localspec.chat.reply.tool import Tool, ToolCall
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


def piece(index: int | None, key: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    told = {"index": index, "id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [{name: value for name, value in told.items() if value is not None}]}


ONE, TWO = ("f", '{"a": 1}'), ("g", "{}")
STREAMS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "whole": ([piece(0, "x", *ONE), piece(1, "y", *TWO)], [ONE, TWO]),
    "at once": ([{"tool_calls": piece(0, "x", *ONE)["tool_calls"] + piece(1, "y", *TWO)["tool_calls"]}], [ONE, TWO]),
    "without an index": (
        [{"tool_calls": piece(None, "x", *ONE)["tool_calls"] + piece(None, "y", *TWO)["tool_calls"]}],
        [ONE, TWO],
    ),
    "in pieces": (
        [piece(0, "x", "f", ""), piece(0, None, None, '{"a"'), piece(0, "x", "f", ": 1}"), piece(1, "y", "g", "{}")],
        [ONE, TWO],
    ),
    "without ids": ([piece(0, None, *ONE), piece(0, "", *TWO)], [ONE, TWO]),
    "one index": ([piece(0, "x", *ONE), piece(0, "y", *TWO)], [ONE, TWO]),
    "an object": ([piece(0, "x", "f", {"a": 1}), piece(1, "y", "g", None)], [ONE, TWO]),
    "no json": ([piece(0, "x", "f", '{"a": ')], [("f", '{"a": ')]),
    "malformed": (
        [{"tool_calls": 5}, {"tool_calls": [3, {"index": 0}, {"function": 3}]}, piece(0, "x", None, "{")],
        [],
    ),
}


@pytest.mark.parametrize("told", STREAMS)
def test_calls_in_all_their_forms(endpoint: Endpoint, told: str) -> None:
    deltas, wanted = STREAMS[told]
    endpoint.deltas, endpoint.finish = [{"content": "So: "}, *deltas], "tool_calls"
    texts, calls = list[str](), list[ToolCall]()
    reply = Reply(Requests(Server(endpoint.url)), PROMPT, "m")
    reply.read(lambda text, _: texts.append(text), calls.extend)
    assert ([(call.name, call.arguments) for call in calls], "".join(texts)) == (wanted, "So: ")
    assert reply.finish is FinishReason.STOP
    keys = [call.id for call in calls]
    assert len(set(keys)) == len(keys)
    assert all(keys)
    assert keys == ["x", "y"][: len(keys)] or told == "without ids"


@pytest.mark.parametrize(("last", "calls"), [('{"b": ', 1), ('{"b": 2}', 2)])
def test_a_call_that_a_limit_cut_is_left_out(endpoint: Endpoint, last: str, calls: int) -> None:
    endpoint.deltas, endpoint.finish = [piece(0, "x", *ONE), piece(1, "y", "g", last)], "length"
    found = list[ToolCall]()
    Reply(Requests(Server(endpoint.url)), PROMPT, "m").read(lambda *_: None, found.extend)
    assert len(found) == calls


def test_calls_and_their_results_are_sent_in_openais_form(endpoint: Endpoint) -> None:
    called = Message("assistant", "", (ToolCall("x", *ONE),), reasoning="Hm.")
    tools = (Tool("f", "Does."),)
    question = Question([*PROMPT.messages, called, Message("tool", "1", tool_call_id="x", name="f")], tools=tools)
    Reply(Requests(Server(endpoint.url)), question, "m").read(lambda *_: None)
    (asked,) = endpoint.requests
    told = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    assert asked["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": told, "reasoning_content": "Hm."},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]
    assert asked["tools"] == [tool.as_function() for tool in tools]


class Toolless(Endpoint):
    """Refuses what has tools, and all if `strict`."""

    strict = False

    @property
    def body(self) -> str:
        refused = self.strict or "tools" in self.requests[-1]
        return json.dumps({"error": {"message": "this model takes no Tools"}}) if refused else ""

    @body.setter
    def body(self, _: str) -> None:
        pass


def asked(endpoint: Endpoint, model: str = "m") -> tuple[str, str]:
    """The text, with tools offered, and what the user should know."""
    reply = Reply(Requests(Server(endpoint.url)), replace(PROMPT, tools=(Tool("f"),)), model)
    texts = list[str]()
    reply.read(lambda text, _: texts.append(text))
    return "".join(texts), reply.notice


def with_tools(endpoint: Endpoint) -> list[bool]:
    return ["tools" in one for one in endpoint.requests]


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_server_that_takes_no_tools_is_asked_without_them(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.remote.asking._TOOLLESS", set())
    with served(Toolless()) as endpoint:
        endpoint.status = status
        notice = f"The server {endpoint.url[7:]} takes no tools; the answer was asked without them."
        assert asked(endpoint) == ("Hello there.", notice)
        assert asked(endpoint) == ("Hello there.", "")
        assert with_tools(endpoint) == [True, False, False], "it is remembered"
        assert asked(endpoint, "another") == ("Hello there.", notice)


@pytest.mark.parametrize(("status", "strict", "times"), [(500, False, 1), (401, False, 1), (400, True, 2)])
def test_a_server_that_refuses_for_another_reason_is_offered_tools_again(status: int, strict: bool, times: int) -> None:
    with served(Toolless()) as endpoint:
        assert isinstance(endpoint, Toolless)
        endpoint.status, endpoint.strict = status, strict
        for _ in range(2):
            with pytest.raises(LocalspecError, match="takes no Tools"):
                asked(endpoint)
        assert with_tools(endpoint) == [True, False][:times] * 2


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
