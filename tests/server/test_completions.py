"""/v1/completions: prompts as text, tokens and lists; echo, gaps, limits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import CONTEXT
from tests.server.live import Live, error_of, user

PROMPT = "I believe the meaning of life is"


def test_an_answer_has_openais_shape(live: Live) -> None:
    body = live.complete(PROMPT, max_tokens=8, temperature=0, ignore_eos=True).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    assert choice["finish_reason"] == "length"
    assert choice["text"]
    assert body["usage"]["completion_tokens"] == body["timings"]["predicted_n"] == 8


def test_the_path_is_also_there_without_v1(live: Live) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    short, long = (live.http.post(path, json=fields).json() for path in ("/completions", "/v1/completions"))
    assert short["choices"] == long["choices"]


def test_tokens_are_a_prompt_too(live: Live) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
    sent = {"content": PROMPT, "add_special": True}
    tokens = live.http.post("/tokenize", json=sent).json()["tokens"]
    by_text = live.complete(PROMPT, **fields).json()["choices"][0]["text"]
    assert live.complete(tokens, **fields).json()["choices"][0]["text"] == by_text
    several = live.complete([tokens, tokens], **fields).json()["choices"]
    assert [choice["text"] for choice in several] == [by_text, by_text]


def test_several_prompts_and_choices_are_counted_through(live: Live) -> None:
    prompts = ["One day", "The sky"]
    fields: dict[str, Any] = {"max_tokens": 6, "seed": 4, "temperature": 1.2, "ignore_eos": True}
    body = live.complete(prompts, n=2, **fields).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    for index, prompt in enumerate(prompts):
        alone = live.complete(prompt, n=2, **fields).json()
        assert [choice["text"] for choice in alone["choices"]] == [
            choice["text"] for choice in body["choices"][2 * index : 2 * index + 2]
        ]
    counts = [len(live.http.post("/tokenize", json={"content": text}).json()["tokens"]) for text in prompts]
    assert body["usage"]["prompt_tokens"] == sum(counts) + body_starts(live) * 2
    assert body["usage"]["completion_tokens"] == 24


def body_starts(live: Live) -> int:
    """Tokens the model wants before any text."""
    sent = {"content": "a", "add_special": True}
    return len(live.http.post("/tokenize", json=sent).json()["tokens"]) - 1


def test_echo_puts_the_prompt_first(live: Live) -> None:
    fields: dict[str, Any] = {"max_tokens": 5, "temperature": 0}
    plain = live.complete(PROMPT, **fields).json()["choices"][0]["text"]
    assert live.complete(PROMPT, echo=True, **fields).json()["choices"][0]["text"] == PROMPT + plain


def test_a_gap_is_filled(live: Live) -> None:
    """Prefix, suffix, middle: the prompt of a model with fill-in tokens is longer by them."""
    plain = live.complete("def add(a, b):\n    return", max_tokens=4, temperature=0).json()
    filled = live.complete("def add(a, b):\n    return", suffix="\n\nprint(add(1, 2))", max_tokens=4, temperature=0)
    assert filled.status_code == 200
    suffix = live.http.post("/tokenize", json={"content": "\n\nprint(add(1, 2))"}).json()["tokens"]
    assert filled.json()["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + len(suffix) + 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, 999_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "echo"),
        ({"prompt": [1], "suffix": "b"}, "prompt"),
        ({"prompt": "a", "messages": [user("a")]}, "messages"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_impossible_requests_are_refused(live: Live, fields: dict[str, Any], param: str) -> None:
    response = live.http.post("/v1/completions", json=fields)
    assert response.status_code == 400, response.text
    assert str(error_of(response)["param"]).split(".")[0] == param


def test_a_prompt_that_does_not_fit_is_refused(live: Live) -> None:
    response = live.complete(PROMPT * 200)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == CONTEXT


def test_the_end_can_be_ignored(live: Live) -> None:
    body = live.complete(PROMPT, ignore_eos=True, max_tokens=200, temperature=0).json()
    assert body["usage"]["completion_tokens"] == 200
    assert body["choices"][0]["finish_reason"] == "length"
