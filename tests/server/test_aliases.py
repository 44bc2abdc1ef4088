"""Names that other servers have for what exists here: thinking, and the form of an answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from localspec.server.chat.fields import ChatFields
from localspec.server.http.reading import HEADER
from tests.server.live import COPIED, COPY, Live, error_of, user

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
OBJECT = r'\{\s*"a"\s*:\s*[12]\s*\}'


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"reasoning_effort": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "low"}}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"reasoning": {"enabled": False, "exclude": True}}, {"enable_thinking": False}),
        ({"reasoning": "low"}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"reasoning": False}, {"enable_thinking": False}),
        ({"thinking": True}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"enable_thinking": True}),
        ({"enable_thinking": False, "thinking": True}, {"enable_thinking": False}),
        ({"thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
def test_every_name_for_thinking_reaches_the_template(live: Live, fields: dict[str, Any], variables: Any) -> None:
    body = {"messages": [user("x")]} | fields
    assert ChatFields.model_validate(body).variables() == variables
    response = live.http.post("/v1/chat/completions", json=body | {"max_tokens": 1})
    assert response.status_code == 200
    assert HEADER not in response.headers


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_json": SCHEMA}, OBJECT),
        ({"guided_json": json.dumps(SCHEMA)}, OBJECT),
        ({"guided_regex": "ab{3}c"}, "abbbc"),
        ({"guided_choice": ["yes (a)", 'no "b"\n']}, r'yes \(a\)|no "b"\n'),
        ({"guided_grammar": 'root ::= "x" "y"'}, "xy"),
        ({"structured_outputs": {"json": SCHEMA}}, OBJECT),
        ({"structured_outputs": {"regex": "[0-9]{4}"}}, "[0-9]{4}"),
        ({"structured_outputs": {"choice": ["é", "ü"]}}, "é|ü"),
        ({"structured_outputs": {"grammar": 'root ::= "x"'}}, "x"),
    ],
)
def test_every_name_for_a_form_binds_the_answer(live: Live, fields: dict[str, Any], pattern: str) -> None:
    response = live.chat("Write something", max_tokens=200, temperature=0, **fields)
    assert response.status_code == 200, response.text
    assert HEADER not in response.headers
    assert re.fullmatch(pattern, response.json()["choices"][0]["message"]["content"])
    text = live.complete("Write something", max_tokens=200, temperature=0, **fields).json()["choices"][0]["text"]
    assert re.fullmatch(pattern, text)


def test_a_token_ends_the_answer_and_is_no_part_of_it(live: Live) -> None:
    """With and without drafts, and in a grammar."""
    words = live.http.post("/tokenize", json={"content": COPIED, "with_pieces": True}).json()["tokens"]
    ids = [token["id"] for token in words]
    place = next(at for at in range(4, len(ids)) if ids[at] not in ids[:at])
    before = "".join(token["piece"] for token in words[:place])
    for more in ({}, {"speculative": {"enabled": False}}, {"guided_regex": "(?s:.*)"}):
        fields: dict[str, Any] = {"stop_token_ids": [ids[place]]} | more
        choice = live.chat(COPY, temperature=0, **fields).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (before, "stop")
    assert error_of(live.chat(COPY, stop_token_ids=[-1]))["param"] == "stop_token_ids"


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_nothing_ends_an_answer_before_min_tokens(live: Live, path: str) -> None:
    ask = live.chat if path == "chat" else live.complete
    found = []
    for more in ({}, {"speculative": {"enabled": False}}):
        body = ask(COPY, temperature=0, min_tokens=60, max_tokens=64, **more).json()
        assert body["usage"]["completion_tokens"] >= 60
        choice = body["choices"][0]
        found.append(choice["message"]["content"] if path == "chat" else choice["text"])
    assert found[0] == found[1]
    stopped = ask(COPY, temperature=0, min_tokens=8, max_tokens=64, stop=["a", "e", "n"]).json()
    assert 9 <= stopped["usage"]["completion_tokens"] < 64
    refused = ask(COPY, min_tokens=9, max_tokens=8)
    assert refused.status_code == 400
    assert "min_tokens is 9; it must not be more than max_tokens, 8." in error_of(refused)["message"]


def test_min_tokens_holds_in_the_other_dialects(live: Live) -> None:
    sent: dict[str, Any] = {"temperature": 0, "min_tokens": 60}
    message = live.http.post("/v1/messages", json=sent | {"messages": [user(COPY)], "max_tokens": 64}).json()
    assert message["usage"]["output_tokens"] >= 60
    response = live.http.post("/v1/responses", json=sent | {"input": COPY, "max_output_tokens": 64}).json()
    assert response["usage"]["output_tokens"] >= 60
    stops = {"stop_sequences": ["12", "lanterns"], "min_tokens": 12, "messages": [user(COPY)], "max_tokens": 64}
    stopped = live.http.post("/v1/messages", json={"temperature": 0} | stops).json()
    assert "12" in stopped["content"][0]["text"], "it came before it counted"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "lanterns")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"guided_json": "{"}, "guided_json is not JSON"),
        ({"guided_json": "[]"}, "guided_json is no JSON object"),
        ({"guided_regex": "("}, "The regular expression cannot be used"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "grammar": 'root ::= "a"'}, "grammar and guided_choice exclude each other"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "exclude each other"),
    ],
)
def test_an_impossible_form_is_refused(live: Live, fields: dict[str, Any], said: str) -> None:
    response = live.chat(**fields)
    assert response.status_code == 400
    assert said in error_of(response)["message"]
