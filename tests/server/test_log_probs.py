"""Log-probabilities, in both shapes, whole and streamed."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.slot import TokenLogProb
from localspec.runtime.pool import Pool
from localspec.server.chat.answers import Offsets, chat_log_probs, text_log_probs
from localspec.server.http.output import LOG
from tests.server.held import eventually, send, stopped
from tests.server.live import COPIED, COPY, Live, engine_of, user


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


def test_the_completion_shape(live: Live) -> None:
    choice = live.complete("One day", logprobs=2, max_tokens=8, temperature=0, ignore_eos=True).json()["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert lengths(found) == {8}
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert math.isclose(top[token], value, abs_tol=1e-5)


def lengths(found: dict[str, Any]) -> set[int]:
    return {len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}


@pytest.mark.parametrize("limit", [0, 5])
def test_an_echoed_prompt_has_log_probs_too(live: Live, limit: int) -> None:
    """As evaluation programs ask for them: with `max_tokens` 0 or 1, for texts and for tokens."""
    tokens = live.http.post("/tokenize", json={"content": COPY}).json()["tokens"]
    fields: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": limit, "temperature": 0, "ignore_eos": True}
    body = live.complete([COPY, "One"], **fields).json()
    choice, found = body["choices"][0], body["choices"][0]["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert choice["text"].startswith(COPY)
    assert choice["finish_reason"] == "length"
    assert lengths(found) == {len(tokens) + limit}
    assert body["usage"]["completion_tokens"] == 2 * limit
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for value, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert value <= max(top.values()) + 1e-4
        assert len(top) == 2
    assert body["choices"][1]["text"].startswith("One")
    by_tokens = live.complete(tokens, **fields).json()["choices"][0]["logprobs"]
    assert by_tokens["tokens"][: len(tokens)] == found["tokens"][: len(tokens)]
    assert (by_tokens["token_logprobs"][0], by_tokens["top_logprobs"][0]) == (None, None)
    assert lengths(by_tokens) == {len(tokens) + limit}


@pytest.mark.parametrize("limit", [0, 4])
def test_an_echo_with_log_probs_streams_as_it_comes_whole(live: Live, limit: int) -> None:
    fields: dict[str, Any] = {"prompt": "One day", "echo": True, "logprobs": 1, "max_tokens": limit, "n": 2, "seed": 3}
    fields["ignore_eos"] = True
    whole = live.http.post("/v1/completions", json=fields).json()["choices"]
    chunks = [chunk["choices"][0] for chunk in live.stream("/v1/completions", **fields)[:-1]]
    for index in (0, 1):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text"] for chunk in mine) == whole[index]["text"]
        parts = [chunk["logprobs"] for chunk in mine if chunk["logprobs"]]
        for name in ("tokens", "text_offset"):
            assert [one for part in parts for one in part[name]] == whole[index]["logprobs"][name]
        assert mine[-1]["finish_reason"] == "length"


def test_a_prompt_is_scored_as_an_answer_is(pool: Pool) -> None:
    """Tokens the model has said itself are as likely when they are read, but for rounding: a row too far would show."""
    lease = pool.lease(pool.default)
    engine = lease.engine
    prompt = engine.tokenize("One day")
    answer = engine.generate(prompt, seed=2, max_tokens=150, ignore_end=True, top_log_probs=3)
    said = [one for event in answer for one in event.log_probs]
    read = engine.score(np.array([*prompt.tolist(), *answer.tokens]), 3)
    lease.release()
    assert len(read) == len(prompt) - 1 + 150
    for one, other in zip(said, read[len(prompt) - 1 :], strict=True):
        assert one.token == other.token
        assert other.log_prob == pytest.approx(one.log_prob, abs=0.5)
        assert other.top[0][1] == pytest.approx(one.top[0][1], abs=0.5)


@pytest.mark.parametrize("waits", [False, True])
def test_a_client_that_leaves_while_its_prompt_is_read(
    live: Live, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    """Its answer ends at once, also if it is not its turn yet to have a text read; nothing is wrong with the server."""

    def cancelled() -> float:
        lines = live.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if 'finish="cancelled"' in line)

    service, count = live.service, 20  # far more answers than could come to their end meanwhile
    sent = {"prompt": "one two " * 200, "echo": True, "logprobs": 1, "ignore_eos": True, "n": count}
    assert eventually(lambda: not service.live["tiny"])
    before = cancelled()
    with watched(caplog), ThreadPoolExecutor(1) as crowd:
        with stopped(engine_of(service.pool)):
            if waits:
                crowd.submit(live.http.post, "/v1/embeddings", json={"input": "A castle."})
                assert eventually(lambda: service.reading == 1)
            leaving = send(live, "/v1/completions", sent)
            assert eventually(lambda: service.live["tiny"] == count and service.reading == 1 + waits)
            leaving.close()
            assert not waits or eventually(lambda: service.reading == 1)
        assert eventually(lambda: not service.live["tiny"])
        assert eventually(lambda: "POST /v1/completions 499" in caplog.text)
    assert cancelled() > before


@contextmanager
def watched(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The server's log is seen meanwhile."""
    caplog.set_level(logging.INFO, logger=LOG.name)
    LOG.addHandler(caplog.handler)
    try:
        yield
    finally:
        LOG.removeHandler(caplog.handler)


def test_tokens_of_one_text_are_all_told(pool: Pool) -> None:
    """Many tokens are part of a character; the emitted one is found by its text, and the others are not lost."""
    lease = pool.lease(pool.default)
    model = lease.engine.loaded.model
    lease.release()
    one, two, three = [token for token in range(model.n_vocab) if model.piece(token).decode(errors="replace") == "�"][
        :3
    ]
    word = int(model.tokenize("Oslo", special=False, add_bos=False)[0])
    spelled = model.piece(word).decode()
    tops = ((one, -1.0), (two, -2.0), (word, -3.0), (three, -4.0))

    def by_text(emitted: int, value: float) -> dict[str, float] | None:
        found = text_log_probs([TokenLogProb(emitted, value, 0.0, tops)], model, Offsets(), special=True)
        assert found["top_logprobs"] is not None
        return found["top_logprobs"][0]

    assert by_text(word, -3.0) == {"�": -1.0, f"token_id:{two}": -2.0, spelled: -3.0, f"token_id:{three}": -4.0}
    assert by_text(two, -2.0) == {f"token_id:{one}": -1.0, "�": -2.0, spelled: -3.0, f"token_id:{three}": -4.0}
    (told,) = chat_log_probs([TokenLogProb(two, -2.0, 0.0, tops)], model)
    assert (told["id"], told["logprob"]) == (two, -2.0)
    assert [(top["id"], top["logprob"]) for top in told["top_logprobs"]] == list(tops)
    assert [bytes(top["bytes"]) for top in told["top_logprobs"]] == [model.piece(token) for token, _ in tops]


def test_only_an_echo_may_be_empty(live: Live) -> None:
    assert live.complete("One day", max_tokens=0).json()["error"]["param"] == "max_tokens"
    body = live.complete("One day", max_tokens=0, echo=True, stream_options=None).json()
    assert [(one["text"], one["logprobs"]) for one in body["choices"]] == [("One day", None)]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("text", ["ab 😀", "😀", "é 日本 x", "a👩‍👧b 😀😀", "Oslo"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_character_of_several_tokens_counts_once(live: Live, text: str, stream: bool) -> None:
    """In the echoed prompt and in the answer after it."""
    fields: dict[str, Any] = {"prompt": text, "echo": True, "logprobs": 0, "max_tokens": 4, "ignore_eos": True}
    if stream:
        chunks = [chunk["choices"][0] for chunk in live.stream("/v1/completions", **fields)[:-1]]
        offsets = [one for chunk in chunks if chunk["logprobs"] for one in chunk["logprobs"]["text_offset"]]
    else:
        offsets = live.complete(**fields).json()["choices"][0]["logprobs"]["text_offset"]
    pieces = live.http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    spelled, wanted = b"", []
    for piece in (one["piece"] for one in pieces):
        wanted.append(len(spelled.decode(errors="ignore")))
        spelled += piece.encode() if isinstance(piece, str) else bytes(piece)
    assert spelled.decode() == text
    assert offsets[: len(wanted)] == wanted
    assert offsets[len(wanted)] == len(text)
    assert offsets == sorted(offsets)


@given(st.text(), st.data())
def test_an_offset_is_the_index_of_the_character_its_first_byte_belongs_to(text: str, data: st.DataObject) -> None:
    whole, offsets = text.encode("utf-8", "replace"), Offsets()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    starts = [0, *cuts]
    for start, end in zip(starts, [*cuts, len(whole)], strict=True):
        assert offsets.add(whole[start:end]) == len(whole[:start].decode(errors="ignore"))
    assert offsets.at == len(whole.decode())


def test_bytes_that_are_no_character_are_one_each() -> None:
    offsets = Offsets(2)
    assert [offsets.add(piece) for piece in (b"\xf0", b"a", b"", b"\xff", b"\xf0\x9f", b"\x98\x80", b"b")] == [
        2, 3, 4, 4, 5, 5, 6
    ]  # fmt: skip


def test_offsets_go_on_in_a_stream(live: Live) -> None:
    fields: dict[str, Any] = {"prompt": "One day", "logprobs": 0, "max_tokens": 8, "temperature": 0}
    chunks = live.stream("/v1/completions", **fields)[:-1]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    offsets = [offset for part in parts for offset in part["text_offset"]]
    whole = live.complete(**fields).json()["choices"][0]["logprobs"]
    assert offsets == whole["text_offset"]
    assert whole["top_logprobs"] is None
