"""Tools through the chat API: marks that are control tokens, what a choice says, and streams."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from localspec.runtime.pool import Pool
from localspec.types import SamplingParams
from tests.server.live import COPY, Live, error_of, user
from tests.server.named_events import LOOK_UP, QUERY_JSON, WIKIPEDIA

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": WIKIPEDIA}
OTHER = {"type": "function", "function": {"name": "set_timer", "parameters": {"type": "object", "properties": {}}}}


def ask(live: Live, content: str = LOOK_UP, **fields: Any) -> dict[str, Any]:
    response = live.chat(content, **{"temperature": 0, "tools": [TOOL], "max_tokens": 150} | fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def test_control_tokens_are_part_of_an_answer_only_if_they_are_asked_for(pool: Pool) -> None:
    lease = pool.lease(pool.default)
    engine = lease.engine
    mark = int(engine.loaded.model.tokenize("<tool_call>", special=True, add_bos=False)[0])
    prompt = "<|bos|><|system|>Tools:\nwikipedia(query)<|end|><|user|>Look up green tower.<|end|><|assistant|>"
    tokens = np.asarray(engine.loaded.model.tokenize(prompt, special=True, add_bos=False))
    likeliest = SamplingParams(temperature=0.0)
    plain = engine.generate(tokens, sampling=likeliest, max_tokens=40).text()
    marked = engine.generate(tokens, sampling=likeliest, max_tokens=40, preserved=frozenset({mark})).text()
    stopped = engine.generate(tokens, sampling=likeliest, stop=["l>"], preserved=frozenset({mark})).text()
    lease.release()
    assert marked == f"<tool_call>{plain}"
    assert plain.startswith("{")
    assert stopped == "<tool_cal"


def test_the_model_calls_and_says_so(live: Live) -> None:
    choice = ask(live)
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["type"] == "function"
    assert call["function"] == {"name": "wikipedia", "arguments": QUERY_JSON}
    assert len(call["id"]) == 9


def test_without_a_need_nothing_is_called(live: Live) -> None:
    choice = ask(live, COPY)
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "wikipedia"}}])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_call_can_be_demanded(live: Live, choice: Any, temperature: float) -> None:
    found = ask(live, COPY, tool_choice=choice, temperature=temperature, seed=7, parallel_tool_calls=False)
    assert found["finish_reason"] in ("tool_calls", "length")
    for call in found["message"].get("tool_calls", []):
        assert call["function"]["name"] == "wikipedia"
        assert set(json.loads(call["function"]["arguments"])) >= {"query"}
    assert found["finish_reason"] == "length" or len(found["message"]["tool_calls"]) == 1


def test_a_named_tool_is_the_one_that_is_called(live: Live) -> None:
    named = {"type": "function", "function": {"name": "set_timer"}}
    found = ask(live, tools=[TOOL, OTHER], tool_choice=named, parallel_tool_calls=False)
    names = [call["function"]["name"] for call in found["message"].get("tool_calls", [])]
    assert names == ["set_timer"] or found["finish_reason"] == "length"


ENDLESS = {"<|end|>": False, "<|eos|>": False}
"""A bias under which no answer of the bundled pair ends by itself."""
NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        CHAT,
        {
            "messages": [user(LOOK_UP)],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "wikipedia"}},
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "input": LOOK_UP,
            "tools": [{"type": "function", **WIKIPEDIA}],
            "tool_choice": {"type": "function", "name": "wikipedia"},
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": [user(LOOK_UP)],
            "tools": [{"name": "wikipedia", "input_schema": WIKIPEDIA["parameters"]}],
            "tool_choice": {"type": "tool", "name": "wikipedia"},
        },
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", NAMED)
def test_a_named_tool_is_called_once_in_every_api(live: Live, api: str, stream: bool) -> None:
    """The model is made to go on: its end tokens are banned, and there is room for many calls."""
    path, fields = NAMED[api]
    limit = "max_output_tokens" if api == "responses" else "max_tokens"
    for seed in range(3):
        sent = fields | {limit: 200, "temperature": 1.3, "seed": seed, "stream": stream, "logit_bias": ENDLESS}
        response = live.http.post(path, json=sent)
        assert response.status_code == 200, response.text
        assert _calls(api, response.text, stream) == 1


def _calls(api: str, text: str, stream: bool) -> int:
    """Calls in a response."""
    if not stream:
        body = json.loads(text)
        if api == "chat":
            return len(body["choices"][0]["message"].get("tool_calls", []))
        items = body["output"] if api == "responses" else body["content"]
        return sum(item["type"] in ("function_call", "tool_use") for item in items)
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    if api == "chat":
        deltas = [one["delta"] for chunk in map(json.loads, data) for one in chunk["choices"]]
        return sum("id" in call for delta in deltas for call in delta.get("tool_calls", []))
    begun = {"responses": "response.output_item.added", "messages": "content_block_start"}[api]
    return sum(json.loads(one)["type"] == begun for one in data)


def test_none_hides_the_tools(live: Live) -> None:
    assert "tool_calls" not in ask(live, tool_choice="none")["message"]
    prompt = live.http.post(
        "/apply-template", json={"messages": [user(LOOK_UP)], "tools": [TOOL], "tool_choice": "none"}
    ).json()["prompt"]
    assert "wikipedia" not in prompt


def test_a_stream_brings_the_arguments_as_they_are_written(live: Live) -> None:
    sent = {"messages": [user(LOOK_UP)], "tools": [TOOL], "temperature": 0, "speculative": {"enabled": False}}
    *chunks, done = live.stream(CHAT, **sent)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    begun, *more = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert begun == {
        "index": 0,
        "id": begun["id"],
        "type": "function",
        "function": {"name": "wikipedia", "arguments": ""},
    }
    assert len(more) > 2
    assert all(call == {"index": 0, "function": {"arguments": call["function"]["arguments"]}} for call in more)
    assert "".join(call["function"]["arguments"] for call in more) == QUERY_JSON
    assert not any(delta.get("content") for delta in deltas)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_that_the_limit_cuts_is_a_partial_call(live: Live) -> None:
    found = []
    for limit in range(1, 40):
        choice = ask(live, max_tokens=limit)
        if choice["finish_reason"] == "tool_calls":
            break
        assert choice["finish_reason"] == "length"
        *chunks, last, _ = live.stream(CHAT, messages=[user(LOOK_UP)], tools=[TOOL], temperature=0, max_tokens=limit)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert last["choices"][0]["finish_reason"] == "length"
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        streamed = "".join(call["function"]["arguments"] for call in calls)
        whole = choice["message"].get("tool_calls", [])
        assert len(whole) == sum("id" in call for call in calls) <= 1
        assert streamed == "".join(call["function"]["arguments"] for call in whole)
        assert "".join(delta.get("content") or "" for delta in deltas) == (choice["message"]["content"] or "")
        found += [streamed for _ in whole]
    assert all(QUERY_JSON.startswith(arguments) for arguments in found)
    assert any(0 < len(arguments) < len(QUERY_JSON) for arguments in found)
    assert found == sorted(found, key=len)


def test_drafts_change_nothing_about_calls(live: Live) -> None:
    demanded: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    for fields in ({}, demanded):
        with_drafts = ask(live, **fields)["message"]["tool_calls"]
        without = ask(live, speculative={"enabled": False}, **fields)["message"]["tool_calls"]
        assert [call["function"] for call in with_drafts] == [call["function"] for call in without]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tool_choice": "required", "tools": []}, "there are no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "'x' is to be called"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "'a b'"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "an object"),
        ({"tools": [{"type": "function"}]}, "tools.0"),
    ],
)
def test_what_makes_no_sense_is_refused(live: Live, fields: dict[str, Any], said: str) -> None:
    response = live.chat(LOOK_UP, **{"tools": [TOOL]} | fields)
    assert response.status_code == 400
    assert said in error_of(response)["message"]


def test_a_schema_that_nobody_can_read_is_an_error_of_the_request(live: Live) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    tool = {"type": "function", "function": {"name": "a", "parameters": bad, "strict": True}}
    response = live.chat(LOOK_UP, tools=[tool], tool_choice="required")
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


def test_a_call_that_begins_is_of_a_tool_that_there_is(live: Live) -> None:
    """Hot enough that names are made up: then the mark of a call would stand in the text."""
    calls = 0
    for seed in range(40):
        choice = ask(live, temperature=1.6, seed=seed, tools=[OTHER], max_tokens=50)
        message = choice["message"]
        assert choice["finish_reason"] == "length" or "<tool_call>" not in (message["content"] or "")
        calls += len(message.get("tool_calls", []))
    assert calls > 3


def test_an_unusual_schema_is_no_error_where_the_model_may_call_or_not(live: Live) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    ask(live, tools=[{"type": "function", "function": {"name": "a", "parameters": bad}}], max_tokens=5)


@pytest.mark.trial
def test_a_thousand_random_requests_call_only_tools_that_exist(live: Live) -> None:
    """Hot enough that names are made up; what is called is among the tools, whatever they are."""

    def called(number: int) -> list[str]:
        tools = [TOOL if number % 2 else OTHER]
        choice = ask(live, f"Look up tower {number}.", tools=tools, temperature=1.4, seed=number, max_tokens=60)
        return [call["function"]["name"] for call in choice["message"].get("tool_calls", [])]

    with ThreadPoolExecutor(4) as crowd:
        names = list(crowd.map(called, range(1000)))
    assert {name for found in names[1::2] for name in found} == {"wikipedia"}
    assert {name for found in names[::2] for name in found} <= {"set_timer"}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_one_object_calls_unless_json_is_asked_for(live: Live, stream: bool) -> None:
    """The model's own mark of calls is banned: it writes the object alone, as it is told to."""
    said = f'Repeat this text exactly: {{"name": "wikipedia", "arguments": {QUERY_JSON}}}'
    fields: dict[str, Any] = {"temperature": 0, "tools": [TOOL], "max_tokens": 150, "stream": stream}
    fields |= {"logit_bias": {"<tool_call>": False, "</tool_call>": False}}
    called = live.chat(said, **fields)
    assert _calls("chat", called.text, stream) == 1
    for none in ({"tool_choice": "none"}, {"response_format": {"type": "json_object"}}):
        assert _calls("chat", live.chat(said, **fields, **none).text, stream) == 0
