"""What applications ask a published model for over HTTP: objects of a schema, tool calls, gaps in code."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from tests.real.published import INSTRUCT, Real, on
from tests.server.live import user

pytestmark = pytest.mark.trial

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "langs": {"type": "array", "items": {"enum": ["Python", "C", "Rust"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "langs"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
        },
    },
}
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Sets a timer.",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
}
QUESTION = "What is the weather in Oslo right now, in celsius?"


def choice(real: Real, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "temperature": 0, "max_tokens": 200, **fields}
    response = real.live.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["choices"][0]
    return found


@on(INSTRUCT)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_object_is_of_its_schema(real: Real, temperature: float) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    asked = [user("Describe Ada, 36 years old, who writes Python and C, as JSON.")]
    found = choice(real, asked, response_format=form, temperature=temperature, seed=5)
    assert found["finish_reason"] == "stop"
    person = json.loads(found["message"]["content"])
    assert set(person) == {"name", "age", "langs"}
    assert isinstance(person["name"], str)
    assert 0 <= person["age"] <= 150
    assert 1 <= len(person["langs"]) <= 3
    assert set(person["langs"]) <= {"Python", "C", "Rust"}


@on(["qwen"])
def test_a_tool_is_called_with_its_arguments(real: Real) -> None:
    found = choice(real, [user(QUESTION)], tools=[WEATHER, TIMER], tool_choice="required", parallel_tool_calls=False)
    assert found["finish_reason"] == "tool_calls"
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"] == "Oslo"


@on(["qwen"])
def test_a_streamed_call_is_the_whole_one(real: Real) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER, TIMER], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = choice(real, [user(QUESTION)], **fields)["message"]["tool_calls"]
    chunks = real.live.stream(
        "/v1/chat/completions", messages=[user(QUESTION)], temperature=0, max_tokens=200, **fields
    )
    deltas = [part for chunk in chunks[:-1] for part in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == call["function"]["name"]
    assert "".join(part["function"]["arguments"] for part in deltas) == call["function"]["arguments"]


@on(["qwen"])
def test_the_answer_has_what_the_tool_found(real: Real) -> None:
    call = {"name": "get_weather", "arguments": '{"city": "Oslo", "unit": "celsius"}'}
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
    }
    result = {"role": "tool", "tool_call_id": "call00001", "content": '{"temperature": -17, "sky": "clear"}'}
    messages = [user(QUESTION), said, result]
    prompt = real.live.http.post("/apply-template", json={"messages": messages, "tools": [WEATHER]}).json()["prompt"]
    assert f"<tool_response>\n{result['content']}\n</tool_response>" in prompt
    assert "17" in choice(real, messages)["message"]["content"]


@on(["qwen"])
def test_a_gap_in_code_is_filled(real: Real) -> None:
    before, after = "def multiply(a, b):\n    return ", "\n\n\nprint(multiply(6, 7))\n"
    response = real.live.complete(before, suffix=after, temperature=0, max_tokens=24)
    middle = response.json()["choices"][0]["text"]
    tree = ast.parse(before + middle + after)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert ast.unparse(function.body[-1]) in ("return a * b", "return b * a")


@on(["smollm2"])
def test_a_model_without_marks_for_gaps_says_so(real: Real) -> None:
    response = real.live.complete("def f():", suffix="\n")
    assert response.status_code == 400
    assert "no tokens to fill in a gap" in response.json()["error"]["message"]
