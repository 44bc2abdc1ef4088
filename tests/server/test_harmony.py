"""gpt-oss's channels through the endpoint: a model with its marks and random weights, held to forms by grammars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.runtime.pool import Pool
from tests.chat.marked_file import MARKS, write_harmony
from tests.server.live import Live, running, user

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWER = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
TOOL = {"name": "get_weather", "parameters": CITY}
CHAT = "/v1/chat/completions"
SHORT_THOUGHTS = {"logit_bias": {"<|end|>": 3.0}, "max_tokens": 900}
THINKS = {"logit_bias": {"<|channel|>": 30.0, "a": 12.0, "<|end|>": 10.0}, "max_tokens": 900, "seed": 5}
"""The channel *analysis* comes first, with some of its letters."""


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of its own."""
    path = write_harmony(tmp_path_factory.mktemp("models") / "harmony.gguf")
    pool = Pool(str(path), settings={"slots": 1, "context": 4096, "exact": "off"})
    with running(pool) as server:
        yield server
    pool.close()


def ask(live: Live, **fields: Any) -> dict[str, Any]:
    response = live.chat("Where?", **SHORT_THOUGHTS | fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def test_thoughts_and_answers_are_apart(harmony: Live) -> None:
    thoughts = set()
    for seed in range(12):
        message = ask(harmony, seed=seed, response_format=ANSWER)["message"]
        assert json.loads(message["content"])["city"] in ("Oslo", "Rome")
        thought = message.get("reasoning_content", "")
        assert not any(mark in thought for mark in MARKS)
        thoughts.add(bool(thought))
    assert thoughts == {True, False}


def test_a_call_is_one_in_all_three_dialects(harmony: Live) -> None:
    sent: dict[str, Any] = {"messages": [user("Where?")], "tool_choice": "required", **THINKS}
    tools = [{"type": "function", "function": TOOL}]
    choice = ask(harmony, tools=tools, tool_choice="required", **THINKS)
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "get_weather"
    arguments = call["function"]["arguments"]
    assert json.loads(arguments)["city"] in ("Oslo", "Rome")
    chunks = harmony.stream(CHAT, tools=tools, **sent)[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert "".join(call["arguments"] for call in calls) == arguments
    assert len(calls) > 2
    assert not any(delta.get("content") for delta in deltas)
    streamed = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert streamed == choice["message"].get("reasoning_content", "")
    anthropic = {**sent, "tool_choice": {"type": "any"}}
    tool = {"name": "get_weather", "input_schema": CITY}
    answer = harmony.http.post("/v1/messages", json=anthropic | {"tools": [tool]}).json()
    assert [block["input"] for block in answer["content"] if block["type"] == "tool_use"] == [json.loads(arguments)]
    newer = {"input": "Where?", "tools": [{"type": "function", **TOOL}], "max_output_tokens": 900}
    kept = {key: sent[key] for key in ("seed", "tool_choice", "logit_bias")}
    items = harmony.http.post("/v1/responses", json=newer | kept).json()["output"]
    assert [item["arguments"] for item in items if item["type"] == "function_call"] == [arguments]
    thoughts = [part["text"] for item in items if item["type"] == "reasoning" for part in item["content"]]
    assert "".join(thoughts) == streamed != ""
    assert [block["thinking"] for block in answer["content"] if block["type"] == "thinking"] == thoughts


def test_a_grammar_is_for_the_answer_and_its_header_is_given(harmony: Live) -> None:
    assert ask(harmony, guided_choice=["north"])["message"] == {
        "role": "assistant",
        "content": "north",
        "refusal": None,
    }


def test_an_answer_that_has_begun_goes_on_in_its_channel(harmony: Live) -> None:
    messages = [user("Where?"), {"role": "assistant", "content": "In "}]
    prompt = harmony.http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt.endswith("<|start|>assistant<|channel|>final<|message|>In ")
    more = {"guided_choice": ["Oslo"]}
    answer = harmony.http.post(CHAT, json={"messages": messages, **more, **SHORT_THOUGHTS}).json()
    assert answer["choices"][0]["message"]["content"] == "Oslo"
