"""Many requests at once: slots, the queue, clients that go away, and the same text whoever else is served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from localspec.runtime.pool import Pool
from localspec.server.settings import ServerSettings
from tests.server.conftest import SLOTS
from tests.server.live import Live, error_of, running, user

ENDLESS: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "speculative": {"enabled": False}}
LONG = "one two three four five " * 60


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something becomes true."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


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
        if one["timings"]["exact"] and other["timings"]["exact"]:
            assert one["choices"] == other["choices"]
        assert other["usage"]["completion_tokens"] > 0


def test_a_full_queue_says_when_to_come_back(narrow: Live) -> None:
    sent = {"messages": [user("x")], "stream": True} | ENDLESS
    with ThreadPoolExecutor(SLOTS + 2) as crowd:
        stop = threading.Event()

        def hold() -> None:
            with narrow.http.stream("POST", "/v1/chat/completions", json=sent) as response:
                for _ in response.iter_raw():
                    if stop.is_set():
                        return

        held = [crowd.submit(hold) for _ in range(SLOTS + 2)]
        assert eventually(lambda: narrow.service.live["tiny"] == SLOTS + 2)
        response = narrow.chat()
        stop.set()
        for one in held:
            one.result(30)
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert error_of(response)["type"] == "unavailable_error"
    assert eventually(lambda: not narrow.service.live["tiny"])
    assert narrow.chat(max_tokens=1).status_code == 200


def test_more_choices_than_there_are_places(narrow: Live) -> None:
    response = narrow.chat(n=SLOTS + 3)
    assert response.status_code == 400
    assert error_of(response)["param"] == "n"
    assert narrow.chat(n=SLOTS + 2, max_tokens=2).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_client_that_goes_away_frees_its_slot(live: Live, path: str, stream: bool) -> None:
    prompt = {"messages": [user("x")]} if "chat" in path else {"prompt": "x"}
    with httpx.Client(base_url=live.url, timeout=httpx.Timeout(10, read=0.3)) as client:
        if stream:
            with client.stream("POST", path, json=prompt | ENDLESS | {"stream": True}) as response:
                next(response.iter_raw())
        else:
            slow = prompt | ENDLESS | {"n": SLOTS + 40}
            with pytest.raises(httpx.ReadTimeout):
                client.post(path, json=slow)
    assert eventually(lambda: not live.service.live["tiny"], 2.0)


def test_a_client_that_goes_away_while_its_prompt_is_read(live: Live) -> None:
    """Whether it has a slot by then or not, nothing of it stays."""
    with httpx.Client(base_url=live.url, timeout=httpx.Timeout(10, read=0.001)) as client:
        for _ in range(5):
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json={"messages": [user(LONG)]} | ENDLESS)
    assert eventually(lambda: not live.service.live["tiny"], 5.0)
    assert live.chat(max_tokens=1).status_code == 200


def test_a_waiting_request_whose_client_leaves_never_runs(live: Live) -> None:
    def count(name: str) -> float:
        lines = live.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    cancelled = 'localspec:answers_total{exact="true",finish="cancelled"'
    before = count(cancelled), count("llamacpp:tokens_predicted_total")
    engine, held = live.service.pool.loaded()["tiny"], threading.Event()
    blocker = threading.Thread(target=engine.on_engine_thread, args=(held.wait,))
    blocker.start()
    try:
        with (
            httpx.Client(base_url=live.url, timeout=httpx.Timeout(10, read=0.2)) as client,
            pytest.raises(httpx.ReadTimeout),
        ):
            client.post("/v1/chat/completions", json={"messages": [user("y")]})
        time.sleep(0.1)  # for the server to notice
    finally:
        held.set()
        blocker.join()
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
