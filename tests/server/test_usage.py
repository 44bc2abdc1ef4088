"""usage: where each token of a request is counted, and how much of a prediction came true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from localspec.runtime.pool import Pool
from localspec.server.chat.answers import came_true, common_length, usage
from tests.server.live import Live, engine_of, user

ASKED: dict[str, Any] = {"temperature": 0, "max_tokens": 20}
DETAILS = "completion_tokens_details"


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ([], [], 0),
        ([1], [], 0),
        ([], [1], 0),
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [3, 2, 1], 1),
        ([1, 2, 3, 4], [9, 2, 9, 4, 9], 2),
        ([1, 1, 1], [1, 1], 2),
        (list(range(200)), [*range(50), 999, *range(51, 200)], 199),
    ],
)
def test_what_two_texts_have_in_common(one: list[int], other: list[int], wanted: int) -> None:
    assert common_length(one, other) == common_length(other, one) == wanted


def test_a_prediction_that_comes_true_is_accepted_whole(pool: Pool) -> None:
    """However it was drafted: also if nothing was."""
    lease = pool.lease(pool.default)
    asked: dict[str, Any] = {"seed": 1, "max_tokens": 30, "ignore_end": True}
    answer = lease.engine.generate("One day", **asked)
    answer.text()
    for drafter in (None, "none"):
        again = lease.engine.generate(
            "One day", prediction=np.array(answer.tokens[5:25], dtype=np.int32), drafter=drafter, **asked
        )
        again.text()
        assert again.tokens == answer.tokens
        assert came_true(again) == 20
        details = usage([again], [3])["completion_tokens_details"]
        assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (20, 0)
    lease.release()


@pytest.mark.parametrize("stream", [False, True])
def test_all_of_a_prediction_is_accepted_or_rejected(live: Live, stream: bool) -> None:
    text = "Maria bought nothing at all."
    predicted = len(live.http.post("/tokenize", json={"content": text}).json()["tokens"])
    sent = ASKED | {"messages": [user("Tell me a story.")], "prediction": {"type": "content", "content": text}}
    if stream:
        told = live.stream("/v1/chat/completions", **sent, stream_options={"include_usage": True})[-2]["usage"]
    else:
        told = live.http.post("/v1/chat/completions", json=sent).json()["usage"]
    details = told[DETAILS]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == predicted
    assert details["accepted_prediction_tokens"] <= told["completion_tokens"]
    assert details["reasoning_tokens"] == 0


def test_without_a_prediction_nothing_is_accepted_or_rejected(live: Live) -> None:
    body = live.complete(["One day", "The sky"], n=2, **ASKED).json()
    assert body["usage"][DETAILS] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
        "reasoning_tokens": 0,
    }
    assert body["usage"]["completion_tokens"] == sum(one["stats"]["generated_tokens"] for one in body["localspec"])
    stats = [body["localspec"][first]["stats"] for first in (0, 2)]
    assert body["usage"]["prompt_tokens"] == sum(one["prompt_tokens"] for one in stats)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == sum(one["reused_tokens"] for one in stats)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_kept_apart_and_counted(live: Live, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """As with a model whose template knows thoughts; a grammar makes this one think."""
    model = engine_of(live.service.pool).loaded.model
    monkeypatch.setattr(model, "chat_template", f"{model.chat_template}{{# <think></think> #}}")
    sent: dict[str, Any] = {"grammar": 'root ::= "<think>one two three</think>done"', "messages": [user("Hi")]}
    if stream:
        *chunks, last, _ = live.stream("/v1/chat/completions", **sent, stream_options={"include_usage": True})
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        thought, said = ("".join(one.get(name) or "" for one in deltas) for name in ("reasoning_content", "content"))
    else:
        last = live.http.post("/v1/chat/completions", json=sent).json()
        message = last["choices"][0]["message"]
        thought, said = message["reasoning_content"], message["content"]
    assert (thought, said) == ("one two three", "done")
    tokens = live.http.post("/tokenize", json={"content": thought}).json()["tokens"]
    assert last["usage"][DETAILS]["reasoning_tokens"] == len(tokens) < last["usage"]["completion_tokens"]
