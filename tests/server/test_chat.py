"""/v1/chat/completions, whole answers: shapes, limits, sampling, choices."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.server.chat.fields import ChatMessage, message_of
from tests.server.conftest import CONTEXT
from tests.server.live import COPIED, COPY, Live, error_of, user


def test_an_answer_has_openais_shape(live: Live) -> None:
    response = live.chat(temperature=0)
    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["system_fingerprint"].startswith("localspec-")
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": COPIED, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_the_prompt_is_what_the_template_makes_of_it(live: Live) -> None:
    messages = [{"role": "system", "content": "Book"}, user("What is the best book")]
    prompt = live.http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt == "<|bos|><|system|>Book<|end|><|user|>What is the best book<|end|><|assistant|>"
    tokens = live.http.post("/tokenize", json={"content": prompt}).json()["tokens"]
    usage = live.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == len(tokens)
    counted = live.http.post("/v1/chat/completions/input_tokens", json={"messages": messages}).json()
    assert counted["input_tokens"] == len(tokens)


def test_a_prompt_may_end_before_the_answer(live: Live) -> None:
    sent = {"messages": [user("Hi")], "add_generation_prompt": False}
    assert live.http.post("/apply-template", json=sent).json()["prompt"] == "<|bos|><|user|>Hi<|end|>"


@pytest.mark.parametrize(
    "content",
    ["What is\nthe best book", [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best book"}]],
)
def test_parts_of_text_are_lines(live: Live, content: Any) -> None:
    sent = {"messages": [{"role": "user", "content": content}]}
    prompt = live.http.post("/apply-template", json=sent).json()["prompt"]
    assert prompt == "<|bos|><|user|>What is\nthe best book<|end|><|assistant|>"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_ends_at_its_limit(live: Live, name: str) -> None:
    limit: dict[str, Any] = {name: 5, "ignore_eos": True}
    body = live.chat(**limit).json()
    assert body["usage"]["completion_tokens"] == 5
    assert body["choices"][0]["finish_reason"] == "length"


def test_two_limits_that_differ_are_refused(live: Live) -> None:
    response = live.chat(max_tokens=5, max_completion_tokens=6)
    assert response.status_code == 400
    assert error_of(response)["param"] == "max_completion_tokens"


def test_minus_one_is_no_limit(live: Live) -> None:
    body = live.chat(max_tokens=-1, temperature=0).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["message"]["content"] == COPIED


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_equal_seeds_give_equal_text(live: Live, temperature: float) -> None:
    texts = {
        live.chat("Tell me a story.", seed=42, temperature=temperature, max_tokens=24).json()["choices"][0]["message"][
            "content"
        ]
        for _ in range(3)
    }
    assert len(texts) == 1


def test_different_seeds_give_different_texts(live: Live) -> None:
    answers = [live.chat("Tell me a story.", seed=seed, temperature=1.5, max_tokens=24).json() for seed in range(4)]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 4
    assert [answer["localspec"][0]["seed"] for answer in answers] == [0, 1, 2, 3]


def test_the_seed_that_was_drawn_repeats_the_answer(live: Live) -> None:
    first = live.chat("Tell me a story.", temperature=1.5, max_tokens=24).json()
    again = live.chat("Tell me a story.", temperature=1.5, max_tokens=24, seed=first["localspec"][0]["seed"]).json()
    assert again["choices"] == first["choices"]


def test_choices_share_a_seed_and_differ(live: Live) -> None:
    sent: dict[str, Any] = {"seed": 7, "temperature": 1.5, "max_tokens": 16}
    body = live.chat("Tell me a story.", n=3, **sent).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert len(set(texts)) == 3
    assert body["usage"]["completion_tokens"] == sum(one["stats"]["generated_tokens"] for one in body["localspec"])
    alone = live.chat("Tell me a story.", **sent).json()
    assert alone["choices"][0]["message"]["content"] == texts[0]
    assert alone["usage"]["prompt_tokens"] == body["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stop", ["Lisbon", ["Oslo", "Lisbon"]])
def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(live: Live, stop: Any) -> None:
    choice = live.chat(temperature=0, stop=stop).json()["choices"][0]
    assert choice["message"]["content"] == "Maria bought 12 lanterns in "
    assert choice["finish_reason"] == "stop"


def test_an_answer_may_be_begun(live: Live) -> None:
    messages = [user(COPY), {"role": "assistant", "content": "Maria bought 12"}]
    for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        body = live.http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0} | more).json()
        assert body["choices"][0]["message"]["content"] == COPIED.removeprefix("Maria bought 12")


def test_an_answer_that_is_begun_and_asked_for_is_refused(live: Live) -> None:
    messages = [user("Hi"), {"role": "assistant", "content": "Hello"}]
    both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    response = live.http.post("/v1/chat/completions", json=both)
    assert response.status_code == 400
    assert error_of(response)["param"] == "continue_final_message"


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "string",
        [],
        [123],
        [{}],
        [{"role": 123}],
        [{"role": "system", "content": 123}],
        [{"role": "robot", "content": "hello"}],
        [{"content": "hello"}],
        [{"role": "system", "content": "test"}, {}],
        [user("test"), {"role": "assistant", "content": "test"}, {"role": "assistant", "content": "test"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    ],
)
def test_impossible_messages_are_refused(live: Live, messages: Any) -> None:
    response = live.http.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith("messages")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_refused_with_numbers(live: Live, stream: bool) -> None:
    messages = [{"role": "system", "content": "Book"}, user("What is the best book")] * 100
    response = live.http.post("/v1/chat/completions", json={"messages": messages, "stream": stream})
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "exceed_context_size_error"
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == CONTEXT
    assert error["n_prompt_tokens"] > CONTEXT


def test_an_answer_ends_where_the_context_does(live: Live) -> None:
    body = live.chat("one two three " * 200, ignore_eos=True, temperature=0).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == CONTEXT


def test_banned_tokens_do_not_come(live: Live) -> None:
    tokens = live.http.post("/tokenize", json={"content": " Lisbon"}).json()["tokens"]
    assert "Lisbon" in live.chat(temperature=0).json()["choices"][0]["message"]["content"]
    by_id = {str(token): -100 for token in tokens}
    by_text = {" Lisbon": False}
    as_pairs = [[token, False] for token in tokens]
    for bias in (by_id, by_text, as_pairs):
        response = live.chat(temperature=0, max_tokens=40, logit_bias=bias)
        assert response.status_code == 200, response.text
        assert " Lisbon" not in response.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "bias", [{"99999999": 1}, {"-1x": True}, [[1]], [[1, 2, 3]], [[True, 1.0]], [["a", "b"]], {"5": "x"}, 7]
)
def test_an_impossible_bias_is_refused(live: Live, bias: Any) -> None:
    response = live.chat(logit_bias=bias)
    assert response.status_code == 400
    assert str(error_of(response)["param"]).startswith("logit_bias")


def test_cached_tokens_are_counted(live: Live) -> None:
    long = "Sort these words: " + " ".join(f"word{number}" for number in range(200))
    first, second = (live.chat(long, max_tokens=1).json() for _ in range(2))
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"] > 512
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 512 - 1
    assert second["timings"]["cache_n"] == cached
    assert second["timings"]["prompt_n"] == second["usage"]["prompt_tokens"] - cached


def test_an_image_in_a_tools_result_is_a_text_in_its_place() -> None:
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    read = ChatMessage.model_validate({"role": "tool", "content": parts, "tool_call_id": "a"})
    assert message_of(read).content == "See\n[image_url: not shown, text only]"
    with pytest.raises(ValueError, match="reads text only"):
        ChatMessage.model_validate({"role": "user", "content": parts})
