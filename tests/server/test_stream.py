"""Streams: the exact order of chunks, the same text as a whole answer, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from localspec.server.chat.answers import Answers
from localspec.server.http.output import OPENAI, ApiError
from tests.server.live import COPIED, COPY, Live, engine_of, events, user

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def test_the_order_of_a_stream_byte_for_byte(live: Live) -> None:
    sent = {"messages": [user(COPY)], "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    text = live.http.post(CHAT, json=sent).text
    found = events(text)
    assert text.endswith("data: [DONE]\n\n")
    *chunks, finish, usage, done = found
    assert done == "[DONE]"
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}
    ]
    for chunk in chunks[1:]:
        (choice,) = chunk["choices"]
        assert list(choice) == ["index", "delta", "finish_reason"]
        assert list(choice["delta"]) == ["content"]
        assert choice["finish_reason"] is None
    assert "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks) == COPIED
    assert finish["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert "timings" in finish
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 10
    head = {key: chunks[0][key] for key in ("id", "object", "created", "model", "system_fingerprint")}
    assert head["object"] == "chat.completion.chunk"
    for chunk in (*chunks, finish, usage):
        assert {key: chunk[key] for key in head} == head
        assert list(chunk)[:6] == ["id", "object", "created", "model", "system_fingerprint", "choices"]
    first = json.dumps(chunks[0], separators=(",", ":"))
    assert text.startswith(f"data: {first}\n\n")


def test_usage_comes_only_if_asked_for(live: Live) -> None:
    found = live.stream(CHAT, messages=[user("Hi")], max_tokens=3, ignore_eos=True)
    assert all("usage" not in chunk for chunk in found[:-1])
    assert found[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_streamed_and_whole_texts_are_equal(live: Live, temperature: float) -> None:
    fields: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 40}
    found = live.stream(CHAT, messages=[user("Tell me a story.")], **fields)
    streamed = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in found[:-1])
    assert streamed == live.chat("Tell me a story.", **fields).json()["choices"][0]["message"]["content"]
    texts = live.stream(TEXT, prompt="One day", **fields)
    streamed = "".join(chunk["choices"][0]["text"] for chunk in texts[:-1])
    assert streamed == live.complete("One day", **fields).json()["choices"][0]["text"]


def test_the_order_of_a_text_stream(live: Live) -> None:
    *chunks, finish, usage, done = live.stream(
        TEXT, prompt="One day", max_tokens=6, ignore_eos=True, stream_options={"include_usage": True}, echo=True
    )
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["text"] == "One day"
    for chunk in chunks:
        assert chunk["object"] == "text_completion"
        assert chunk["choices"][0]["finish_reason"] is None
    assert finish["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6


def test_choices_are_interleaved_and_whole(live: Live) -> None:
    fields: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 1.5, "max_tokens": 12}
    found = live.stream(CHAT, messages=[user("Tell me a story.")], **fields)[:-1]
    assert [chunk["choices"][0]["index"] for chunk in found[:3]] == [0, 1, 2]
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in found[:3])
    texts = ["", "", ""]
    finished = []
    for chunk in found[3:]:
        (choice,) = chunk["choices"]
        assert choice["index"] not in finished
        texts[choice["index"]] += choice["delta"].get("content") or ""
        if choice["finish_reason"]:
            finished.append(choice["index"])
    assert sorted(finished) == [0, 1, 2]
    whole = live.chat("Tell me a story.", **fields).json()["choices"]
    assert texts == [choice["message"]["content"] for choice in whole]


def test_a_stop_string_never_shows(live: Live) -> None:
    found = live.stream(CHAT, messages=[user(COPY)], temperature=0, stop=["lanterns in Oslo"])
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in found[:-1])
    assert text == "Maria bought 12 lanterns in Lisbon and 3 "


def test_timings_on_every_chunk_if_asked_for(live: Live) -> None:
    found = live.stream(CHAT, messages=[user(COPY)], timings_per_token=True, temperature=0)
    content = [chunk for chunk in found[1:-1] if chunk["choices"][0]["delta"].get("content")]
    assert content
    counts = [chunk["timings"]["predicted_n"] for chunk in content]
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_a_silent_stream_is_kept_alive(live: Live) -> None:
    """The engine's thread is held up until the silence was noticed."""

    async def seen() -> list[object]:
        engine, held = engine_of(live.service.pool), threading.Event()
        blocker = threading.Thread(target=engine.on_engine_thread, args=(held.wait,))
        blocker.start()
        answers = Answers([engine.generate("One day", max_tokens=2)], lambda generation: None)
        found: list[object] = []
        async for arrival in answers.events(0.01):
            found.append(arrival)
            held.set()
        blocker.join()
        return found

    found = asyncio.run(seen())
    assert found[0] is None
    assert any(arrival is not None for arrival in found)


def test_comments_and_errors_within_a_stream(live: Live) -> None:
    async def chunks() -> AsyncIterator[dict[str, Any] | None]:
        yield None
        raise ApiError(500, "server_error", "It broke.")

    async def lines() -> list[str]:
        return [line async for line in OPENAI.lines(chunks(), "/v1/completions")]

    ping, error, done = asyncio.run(lines())
    assert ping == ":\n\n"
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "It broke."
    assert done == "data: [DONE]\n\n"
