"""What a client may say about drafting, and what it is told: the text never depends on it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.server.live import COPIED, COPY, Live, user

WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"speculative": {"enabled": False}},
    {"speculative": {"max_draft_tokens": 0}},
    {"speculative": {"max_draft_tokens": 1}},
    {"speculative": {"max_draft_tokens": 4}},
    {"speculative": {"drafter": "lookup"}},
    {"speculative": {"drafter": "draft", "max_draft_tokens": 3}},
    {"speculative": {"drafter": "lookup", "force": True}},
    {"speculative": {"drafter": "none"}},
    {"prediction": {"type": "content", "content": COPIED}},
    {"prediction": {"type": "content", "content": [{"type": "text", "text": "something else"}]}},
)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_does_not_depend_on_how_it_was_drafted(live: Live, temperature: float) -> None:
    texts = set()
    for way in WAYS:
        body = live.chat(temperature=temperature, seed=11, **way).json()
        assert body["localspec"][0]["stats"]["exact"] is True
        texts.add(body["choices"][0]["message"]["content"])
    assert len(texts) == 1


@pytest.mark.usefixtures("always_looked_up")
@pytest.mark.parametrize("stream", [False, True])
def test_a_prediction_is_what_prompt_lookup_drafts_from(live: Live, stream: bool) -> None:
    """The answer itself is predicted, so nearly all of it can be guessed; the drafts say where they come from.

    It is a text that has the model's own tokens when it is read (see `COPY`).
    """
    sent: dict[str, Any] = {"messages": [user(COPY)], "temperature": 0}

    def ask(**more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        if not stream:
            body = live.http.post("/v1/chat/completions", json=sent | more).json()
            return body["choices"][0]["message"]["content"], body["timings"], body["localspec"][0]["stats"]
        chunks = live.stream("/v1/chat/completions", **sent, **more)[:-1]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        return text, chunks[-1]["timings"], chunks[-1]["localspec"][0]["stats"]

    text, _, told = ask()
    again, timings, stats = ask(prediction={"type": "content", "content": text})
    assert again == text
    assert "prediction" not in told["drafted_by_drafter"]
    guessed, right = stats["drafted_by_drafter"]["prediction"], stats["accepted_by_drafter"]["prediction"]
    assert guessed >= right >= 10
    assert timings["draft_n"] == sum(stats["drafted_by_drafter"].values())
    assert timings["draft_n_accepted"] == sum(stats["accepted_by_drafter"].values())


def test_timings_have_llama_servers_names_and_add_up(live: Live) -> None:
    body = live.chat(temperature=0).json()
    timings, stats = body["timings"], body["localspec"][0]["stats"]
    assert {
        "cache_n",
        "prompt_n",
        "prompt_ms",
        "prompt_per_token_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_token_ms",
        "predicted_per_second",
        "draft_n",
        "draft_n_accepted",
        "undrafted_n",
    } == set(timings)
    assert all(isinstance(value, int | float) for value in timings.values())
    assert timings["predicted_n"] == body["usage"]["completion_tokens"] == stats["generated_tokens"]
    assert timings["cache_n"] + timings["prompt_n"] == body["usage"]["prompt_tokens"]
    assert timings["draft_n"] == stats["drafted"] >= timings["draft_n_accepted"] == stats["accepted"]
    assert sum(stats["accepted_per_position"]) == timings["draft_n_accepted"]
    assert timings["predicted_per_second"] > 0


def test_drafting_can_be_switched_off(live: Live) -> None:
    forced = live.chat(temperature=0, speculative={"drafter": "lookup", "max_draft_tokens": 4}).json()["timings"]
    plain = live.chat(temperature=0, speculative={"enabled": False}).json()["timings"]
    assert plain["draft_n"] == 0
    assert forced["predicted_n"] == plain["predicted_n"]


def test_a_request_can_force_a_drafter(live: Live) -> None:
    """In text without a copy the plan leaves the draft model alone; forced, it guesses in every pass but the last."""
    sent: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 30, "ignore_eos": True}
    bodies = [
        live.chat(**sent, speculative=way).json() for way in ({"drafter": "draft", "force": True}, {"enabled": False})
    ]
    forced, plain = (body["localspec"][0]["stats"] for body in bodies)
    assert forced["draft_passes"] >= forced["passes"] - 1
    assert set(forced["drafted_by_drafter"]) == {"draft"}
    assert plain["drafted"] == 0
    assert len({body["choices"][0]["message"]["content"] for body in bodies}) == 1


def test_the_answer_says_why_nothing_was_drafted(live: Live) -> None:
    body = live.chat(temperature=0, speculative={"drafter": "lookup"}, max_tokens=8, ignore_eos=True).json()
    timings, stats = body["timings"], body["localspec"][0]["stats"]
    assert timings["undrafted_n"] == sum(stats["undrafted_passes"].values()) > 0
    assert stats["undrafted_reason"] != ""
    plain = live.chat(temperature=0, speculative={"enabled": False}).json()
    assert (plain["timings"]["undrafted_n"], plain["localspec"][0]["stats"]["undrafted_reason"]) == (0, "")


def test_a_draft_is_never_longer_than_asked_for(live: Live) -> None:
    body = live.chat(temperature=0, speculative={"max_draft_tokens": 2}).json()
    assert len(body["localspec"][0]["stats"]["accepted_per_position"]) <= 2


def test_the_timings_of_choices_are_added_up(live: Live) -> None:
    body = live.chat(n=2, seed=1, temperature=1.0, max_tokens=20, ignore_eos=True).json()
    each = [one["stats"] for one in body["localspec"]]
    assert body["timings"]["predicted_n"] == sum(one["generated_tokens"] for one in each) == 40
    assert body["timings"]["draft_n"] == sum(one["drafted"] for one in each)


def test_completions_are_drafted_too(live: Live) -> None:
    texts = {live.complete(COPY, seed=2, max_tokens=30, **way).json()["choices"][0]["text"] for way in WAYS}
    assert len(texts) == 1


def test_a_client_in_the_style_of_speed_bench_gets_its_figures(live: Live) -> None:
    """llama.cpp's script sends chats of several turns and adds up what `timings` says of each."""
    turns: list[dict[str, str]] = []
    total: Counter[str] = Counter()
    for asked in (COPY, "Say that again."):
        turns.append({"role": "user", "content": asked})
        sent = {"model": "tiny", "messages": turns, "stream": False, "temperature": 0, "max_tokens": 24}
        body = live.http.post("/v1/chat/completions", json=sent | {"speculative": {"max_draft_tokens": 4}}).json()
        turns.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
        for name in ("draft_n", "draft_n_accepted", "prompt_ms", "predicted_ms", "predicted_n", "prompt_n", "cache_n"):
            assert type(body["timings"][name]) is (float if name.endswith("_ms") else int)
            total[name] += body["timings"][name]
        assert body["timings"]["prompt_per_second"] >= 0
        assert body["timings"]["predicted_per_second"] > 0
        assert body["usage"]["completion_tokens"] == body["timings"]["predicted_n"]
    assert 0 <= total["draft_n_accepted"] <= total["draft_n"]
