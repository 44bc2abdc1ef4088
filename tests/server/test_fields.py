"""Fields: what is refused, with its name; what is accepted and not used; what form an answer may be asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.runtime.pool import Pool
from localspec.server.http.settings import ServerSettings
from tests.server.live import COPIED, Live, error_of, running, user


@pytest.fixture(scope="module")
def strict(pool: Pool) -> Iterator[Live]:
    """A server that refuses unknown fields."""
    with running(pool, ServerSettings(strict_fields=True, drain_seconds=0.0)) as server:
        yield server


HARMLESS: dict[str, Any] = {
    "user": "me",
    "store": False,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "safety_identifier": "x",
    "prompt_cache_key": "k",
    "cache_prompt": True,
}


def test_harmless_fields_are_accepted(live: Live) -> None:
    assert live.chat(temperature=0, **HARMLESS).json()["choices"][0]["message"]["content"] == COPIED
    assert live.complete("One day", max_tokens=1, **HARMLESS).status_code == 200


@pytest.mark.parametrize(
    "field",
    ["mirostat", "audio", "functions", "best_of", "suffix", "maxTokens", "é x", "int"],
)
def test_an_unknown_field_is_refused_with_its_name_on_wish(strict: Live, field: str) -> None:
    fields: dict[str, Any] = {field: 1}
    response = strict.chat(**fields)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "unknown_parameter"
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 0),
        ("n", 1000),
        ("n", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -2),
        ("seed", 2**64),
        ("seed", "x"),
        ("stop", [""]),
        ("stop", 5),
        ("stop", ["x"] * 100),
        ("stream", "yes"),
        ("top_logprobs", 5),
        ("logprobs", 3),
        ("repeat_penalty", 0),
        ("presence_penalty", 1000),
        ("modalities", ["audio"]),
        ("prediction", "text"),
        ("speculative", {"enabled": 1}),
        ("speculative", {"drafter": "nobody"}),
        ("speculative", {"max_draft_tokens": 65}),
        ("chat_template_kwargs", {"messages": []}),
        ("response_format", {"type": "sound"}),
        ("tool_choice", "required"),
        ("tools", [{"type": "function"}]),
    ],
)
def test_an_impossible_value_is_refused(live: Live, field: str, value: Any) -> None:
    response = live.chat(**{field: value})
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    words = field.replace("tool_choice", "tool")
    assert words in error["message"] or field in str(error["param"]) or value == {"drafter": "nobody"}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"stop": ["x"] * 65}, "stop", "at most 64 items"),
        ({"x" * 500: 1}, "x" * 80 + "...", "Leave it out."),
        ({"": 1}, "", "''. Leave"),
        ({"messages": [user("x") | {"toolCalls": 5}]}, "messages.0.toolCalls", "Leave it out."),
        ({"messages": [user([{"type": "text", "text": {"a": [1]}}])]}, "messages.0.content.0.text", "a valid string"),
        ({"messages": [user([{"type": "text"}])]}, "messages.0.content.0.text", "is missing"),
        ({"messages": [user([{"type": "refusal", "text": "x"}])]}, "messages.0.content.0.text", "Leave it out."),
        ({"messages": [user([{"type": "sound"}])]}, "messages.0.content.0", "reads text only"),
        ({"tools": [{"type": "function", "function": {"nam": "x"}}]}, "tools.0.function.nam", "Leave it out."),
    ],
)
def test_the_field_at_fault_is_named(strict: Live, fields: dict[str, Any], param: str, said: str) -> None:
    """Also in a union, whose branches all have something to say."""
    error = error_of(strict.chat(**fields))
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("/v1/completions", {"prompt": []}, "prompt", "at least 1 item"),
        ("/v1/completions", {"prompt": [[]]}, "prompt.0", "at least 1 item"),
        ("/v1/completions", {"prompt": ["a", 5]}, "prompt.1", "a valid string"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input", "at most 2048 items"),
    ],
)
def test_lists_of_the_wrong_length_are_named(live: Live, path: str, body: Any, param: str, said: str) -> None:
    error = error_of(live.http.post(path, json=body))
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'],
)
def test_a_body_that_is_none_is_refused(live: Live, body: bytes) -> None:
    response = live.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "json_object", "schema": {"const": "42"}}, r'"42"'),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": "foooooo"}}}, r'"foooooo"'),
        ({"type": "json_schema", "json_schema": {"schema": {"enum": [1, 22]}, "strict": True}}, r"1|22"),
        ({"type": "text"}, r"[\s\S]*"),
    ],
)
def test_an_answer_has_the_form_that_was_asked_for(live: Live, form: dict[str, Any], pattern: str) -> None:
    body = live.chat("Write an example", response_format=form, max_tokens=20).json()
    assert re.fullmatch(pattern, body["choices"][0]["message"]["content"])


def test_a_json_object_is_one(live: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    text = "name: Kate Baker | age: 48\n\nRead the text and write name, age as JSON."
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}},
        {"json_schema": schema},
    ):
        for temperature in (0, 1.5):
            body = live.chat(text, temperature=temperature, seed=1, **fields).json()
            found = json.loads(body["choices"][0]["message"]["content"])
            assert set(found) == {"name", "age"}
            assert body["choices"][0]["finish_reason"] == "stop"


def test_a_grammar_is_kept_to(live: Live) -> None:
    body = live.chat("Whatever", grammar='root ::= "a"{5,5}', max_tokens=16).json()
    assert body["choices"][0]["message"]["content"] == "aaaaa"
    text = live.complete("Whatever", grammar='root ::= ("yes" | "no")').json()
    assert text["choices"][0]["text"] in ("yes", "no")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": 123}},
        {"response_format": {"type": "json_object", "schema": {"type": 123}}},
        {"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"grammar": "root ::= this is (not valid GBNF"},
        {"grammar": "root ::= root"},
        {"json_schema": {"$ref": "#"}},
        {"grammar": 'root ::= "a"', "json_schema": {}},
        {"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}},
    ],
)
def test_an_impossible_form_is_refused(live: Live, fields: dict[str, Any]) -> None:
    response = live.chat(**fields)
    assert response.status_code == 400, response.text
    error_of(response)
