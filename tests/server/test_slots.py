"""Many requests at once: slots, the queue, clients that go away, and the same text whoever else is served."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from localspec.engine.slot import FinishReason
from localspec.runtime.pool import Pool
from localspec.server.http.settings import ServerSettings
from tests.server.conftest import SLOTS
from tests.server.held import eventually, held, send, stopped
from tests.server.live import Live, engine_of, error_of, running, user

ENDLESS: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "speculative": {"enabled": False}}


@pytest.fixture
def narrow(pool: Pool) -> Iterator[Live]:
    """A server whose queue holds two."""
    with running(pool, ServerSettings(max_queue=2, drain_seconds=0.0)) as server:
        yield server


@pytest.mark.parametrize("requests", [2, SLOTS, SLOTS + 3])
def test_requests_at_once_get_the_text_they_get_alone(live: Live, requests: int) -> None:
    prompts = [f"Repeat this text exactly: number {index} is {index * 37}." for index in range(requests)]
    fields: dict[str, Any] = {"seed": 42, "temperature": 1.0, "max_tokens": 24}
    alone = [live.chat(prompt, **fields).json() for prompt in prompts]
    with ThreadPoolExecutor(requests) as crowd:
        together = list(crowd.map(lambda prompt: live.chat(prompt, **fields).json(), prompts))
    for one, other in zip(alone, together, strict=True):
        assert one["localspec"][0]["stats"]["exact"]
        assert other["localspec"][0]["stats"]["exact"]
        assert one["choices"] == other["choices"]
        assert other["usage"]["completion_tokens"] > 0


def test_a_full_queue_says_when_to_come_back(narrow: Live) -> None:
    sent = {"messages": [user("x")], "n": SLOTS + 2} | ENDLESS
    with held(narrow, "/v1/chat/completions", sent, SLOTS + 2):
        refused = narrow.chat(), narrow.complete(["x", "y"], echo=True, logprobs=1)  # nothing of it is read, either
    for response in refused:
        assert response.status_code == 503
        assert int(response.headers["Retry-After"]) > 0
        assert error_of(response)["type"] == "unavailable_error"
    assert narrow.chat(max_tokens=1).status_code == 200


def test_more_choices_than_there_are_places(narrow: Live) -> None:
    response = narrow.chat(n=SLOTS + 3)
    assert response.status_code == 400
    assert error_of(response)["param"] == "n"
    assert narrow.chat(n=SLOTS + 2, max_tokens=2).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_client_that_goes_away_frees_its_slot_within_a_pass(live: Live, path: str, stream: bool) -> None:
    prompt: dict[str, Any] = {"messages": [user("x")]} if "chat" in path else {"prompt": "x"}
    sent = prompt | ENDLESS | {"stream": stream, "n": SLOTS + 1}
    with held(live, path, sent, SLOTS + 1) as (connection, answers):
        assert len(answers) == SLOTS
        connection.close()
        assert eventually(lambda: all(answer.cancelled for answer in answers))
    for answer in answers:
        assert (answer.finish, answer.stats.passes) == (FinishReason.CANCELLED, 1)


def test_a_client_that_goes_away_while_its_prompt_is_read(live: Live) -> None:
    """Chunks that were read stay; no answer is begun."""
    long: dict[str, Any] = {"messages": [user("one two three four five " * 190)]}
    with held(live, "/v1/chat/completions", long | ENDLESS, passes=0) as (connection, (answer,)):
        connection.close()
        assert eventually(lambda: answer.cancelled)
    assert (answer.finish, answer.stats.passes) == (FinishReason.CANCELLED, 0)
    assert live.chat(max_tokens=1).status_code == 200


def test_a_waiting_request_whose_client_leaves_never_runs(live: Live) -> None:
    def count(name: str) -> float:
        lines = live.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    cancelled = 'localspec:answers_total{exact="true",finish="cancelled"'
    before = count(cancelled), count("llamacpp:tokens_predicted_total")
    engine = engine_of(live.service.pool)
    with stopped(engine):
        leaving = send(live, "/v1/chat/completions", {"messages": [user("y")]})
        assert eventually(lambda: live.service.live["tiny"] == 1)
        (waiting,) = engine._waiting
        leaving.close()
        assert eventually(lambda: waiting.cancelled)
    assert eventually(lambda: not live.service.live["tiny"])
    assert (count(cancelled), count("llamacpp:tokens_predicted_total")) == (before[0] + 1, before[1])


def test_an_impossible_request_among_others_disturbs_nobody(live: Live) -> None:
    fields: dict[str, Any] = {"seed": 1, "temperature": 0, "max_tokens": 16}
    wanted = live.chat(**fields).json()["choices"]
    bad: list[dict[str, Any]] = [{"temperature": -1}, {"grammar": "root ::= ("}, {"logit_bias": {"x": "y"}}, {"n": 0}]
    with ThreadPoolExecutor(8) as crowd:
        good = [crowd.submit(live.chat, **fields) for _ in range(4)]
        codes = [crowd.submit(live.chat, **one) for one in bad]
        assert [one.result().status_code for one in codes] == [400] * 4
        assert [one.result().json()["choices"] for one in good] == [wanted] * 4
