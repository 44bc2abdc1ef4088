"""Log-probabilities, in both shapes, whole and streamed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.server.live import COPIED, COPY, Live, user


def chat_tokens(live: Live, stream: bool, **fields: Any) -> list[dict[str, Any]]:
    if not stream:
        found: list[dict[str, Any]] = live.chat(**fields).json()["choices"][0]["logprobs"]["content"]
        return found
    chunks = live.stream("/v1/chat/completions", messages=[user(COPY)], **fields)[:-1]
    parts = [chunk["choices"][0].get("logprobs") for chunk in chunks]
    return [token for part in parts if part for token in part["content"]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_spell_the_answer(live: Live, stream: bool) -> None:
    found = chat_tokens(live, stream, logprobs=True, top_logprobs=3, temperature=0)
    assert "".join(token["token"] for token in found) == COPIED
    assert bytes(byte for token in found for byte in token["bytes"]).decode() == COPIED
    for token in found:
        assert token["logprob"] <= 0
        values = [top["logprob"] for top in token["top_logprobs"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert token["top_logprobs"][0]["token"] == token["token"]  # at temperature 0 the likeliest is taken
        assert math.isclose(token["top_logprobs"][0]["logprob"], token["logprob"], abs_tol=1e-5)


def test_without_a_number_there_is_no_top(live: Live) -> None:
    found = chat_tokens(live, False, logprobs=True, temperature=0)
    assert all(token["top_logprobs"] == [] for token in found)


def test_streamed_and_whole_are_equal(live: Live) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "temperature": 1.0, "seed": 9, "max_tokens": 20}
    whole, streamed = (chat_tokens(live, stream, **fields) for stream in (False, True))
    assert [token["token"] for token in whole] == [token["token"] for token in streamed]
    for one, other in zip(whole, streamed, strict=True):
        assert math.isclose(one["logprob"], other["logprob"], abs_tol=1e-4)


@pytest.mark.parametrize("echo", [False, True])
def test_the_completion_shape(live: Live, echo: bool) -> None:
    if echo:
        response = live.complete("One day", logprobs=2, echo=True)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "logprobs"
        return
    choice = live.complete("One day", logprobs=2, max_tokens=8, temperature=0, ignore_eos=True).json()["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    lengths = {len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert lengths == {8}
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert math.isclose(top[token], value, abs_tol=1e-5)


def test_offsets_go_on_in_a_stream(live: Live) -> None:
    fields: dict[str, Any] = {"prompt": "One day", "logprobs": 0, "max_tokens": 8, "temperature": 0}
    chunks = live.stream("/v1/completions", **fields)[:-1]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    offsets = [offset for part in parts for offset in part["text_offset"]]
    whole = live.complete(**fields).json()["choices"][0]["logprobs"]
    assert offsets == whole["text_offset"]
    assert whole["top_logprobs"] is None
