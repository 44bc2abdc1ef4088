"""Several models behind one endpoint: loaded when named, unloaded when idle, refused when memory is short."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from localspec.machine import Place
from localspec.runtime.engine import Engine
from localspec.runtime.pool import Pool
from localspec.server.http.settings import ServerSettings
from tests.server.held import eventually, send
from tests.server.live import COPIED, Live, error_of, running


class Memory:
    """What is free, as a test says."""

    def __init__(self) -> None:
        self.free = 64 << 30

    def __call__(self) -> list[Place]:
        return [Place("CPU", "cpu", self.free, 64 << 30)]


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory()


@pytest.fixture(scope="module")
def several(memory: Memory) -> Iterator[Live]:
    """A server of its own pool that unloads what nobody used for a tenth of a second."""
    settings = {"slots": 2, "context": 256, "exact": "off"}
    pool = Pool("tiny-target", settings=settings, idle_unload=0.1, room=memory)
    with running(pool, ServerSettings(drain_seconds=0.0)) as server:
        yield server
    pool.close()


def test_a_model_is_loaded_by_its_name_and_unloaded_when_idle(several: Live) -> None:
    for name in ("tiny", "tiny-target", "tiny"):
        body = several.chat(model=name, temperature=0, max_tokens=30).json()
        assert body["model"] == name
        assert body["choices"][0]["message"]["content"] == COPIED
    assert eventually(lambda: not several.service.pool.loaded())
    assert several.http.get("/health").status_code == 200  # unloaded is not ill
    assert several.chat(temperature=0, max_tokens=3).json()["model"] == "tiny-target"


def test_many_ask_for_a_model_that_is_not_loaded(several: Live) -> None:
    assert eventually(lambda: not several.service.pool.loaded())
    with ThreadPoolExecutor(6) as crowd:
        answers = list(crowd.map(lambda _: several.chat(model="tiny", temperature=0), range(6)))
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {COPIED}


def test_a_model_in_use_is_not_unloaded(several: Live) -> None:
    sent = {"prompt": "x", "stream": True, "ignore_eos": True, "n": 2, "speculative": {"enabled": False}}
    with several.http.stream("POST", "/v1/completions", json=sent) as response:
        text = "".join(response.iter_text())
    assert text.endswith("data: [DONE]\n\n")
    assert text.count('"finish_reason":"length"') == 2


def test_a_client_that_leaves_while_its_model_loads(several: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is loaded, and nobody keeps it, nor a slot."""
    assert eventually(lambda: not several.service.pool.loaded())
    go, load = Event(), Engine.load

    def slow(*given: Any, **more: Any) -> Engine:
        assert go.wait(60)
        return load(*given, **more)

    def answered() -> float:
        lines = several.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("localspec:answers_total"))

    before = answered()
    with monkeypatch.context() as slower:
        slower.setattr(Engine, "load", slow)
        leaving = send(several, "/v1/completions", {"model": "tiny", "prompt": "x", "n": 2, "ignore_eos": True})
        assert eventually(lambda: several.service._waiting_for_load == 1)
        leaving.close()
        go.set()
        assert eventually(lambda: answered() == before + 2)
    assert eventually(lambda: not several.service.pool.loaded())  # it is idle


def test_a_fault_nobody_foresaw_has_the_error_shape(several: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    assert eventually(lambda: not several.service.pool.loaded())
    with monkeypatch.context() as broken:
        broken.setattr(Engine, "load", lambda *_, **__: 1 // 0)
        response = several.chat(model="tiny")
    assert response.status_code == 500
    assert error_of(response)["message"] == "Internal error: ZeroDivisionError. Please report it."
    assert several.chat(model="tiny", max_tokens=1).status_code == 200


def test_a_model_without_room_is_refused_for_now(several: Live, memory: Memory) -> None:
    assert eventually(lambda: not several.service.pool.loaded())
    memory.free = 1 << 20
    response = several.chat(model="tiny")
    memory.free = 64 << 30
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    error = error_of(response)
    assert error["type"] == "unavailable_error"
    assert "does not fit memory" in error["message"]
    assert several.chat(model="tiny", max_tokens=1).status_code == 200


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_models_are_loaded_and_unloaded_as_llama_servers_router_does(several: Live, prefix: str) -> None:
    http, pool = several.http, several.service.pool
    assert eventually(lambda: not pool.loaded())
    idle, pool.idle_unload = pool.idle_unload, 60.0
    try:
        loaded = http.post(f"{prefix}/models/load", json={"model": "tiny"})
        assert (loaded.status_code, loaded.json()) == (200, {"success": True})
        assert list(pool.loaded()) == ["tiny"]
        assert http.post(f"{prefix}/models/load", json={"model": "tiny"}).status_code == 200
        lease = pool.lease("tiny")
        in_use = http.post(f"{prefix}/models/unload", json={"model": "tiny"})
        lease.release()
        assert (in_use.status_code, error_of(in_use)["message"]) == (409, "The model 'tiny' is in use.")
        assert http.post(f"{prefix}/models/unload", json={"model": "tiny"}).json() == {"success": True}
        assert not pool.loaded()
        assert error_of(http.post(f"{prefix}/models/unload", json={"model": "tiny"}))["param"] == "model"
    finally:
        pool.idle_unload = idle
    for what in ("load", "unload"):
        unknown = http.post(f"{prefix}/models/{what}", json={"model": "nothing"})
        assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")
        assert http.post(f"{prefix}/models/{what}", json={}).status_code == 400


def test_what_is_asked_of_a_model_that_sleeps_does_not_wake_it(several: Live) -> None:
    assert eventually(lambda: several.http.get("/models/tiny-target").json()["status"] == "unloaded")
    asleep = several.http.get("/props").json()
    assert (asleep["is_sleeping"], asleep["default_generation_settings"]["n_ctx"]) == (True, 256)
    assert int(several.http.get("/metrics").headers["Process-Start-Time-Unix"]) == several.service.started
    assert several.http.get("/models/tiny-target").json()["status"] == "unloaded"


def test_what_is_asked_of_a_model_that_was_never_loaded_is_told_from_its_file(several: Live) -> None:
    several.service.known.pop("tiny-draft", None)
    sleeping = several.http.get("/props", params={"model": "tiny-draft"}).json()
    several.http.get("/metrics")
    assert "tiny-draft" not in several.service.pool.loaded()
    assert (sleeping["is_sleeping"], sleeping["default_generation_settings"]["n_ctx"]) == (True, 0)
    assert several.chat(model="tiny-draft", max_tokens=1).status_code == 200
    awake = several.http.get("/props", params={"model": "tiny-draft"}).json()
    unsaid = {"is_sleeping", "default_generation_settings", "speculative"}
    assert {key: value for key, value in awake.items() if key not in unsaid} == {
        key: value for key, value in sleeping.items() if key not in unsaid
    }
    assert sleeping["chat_template"]
    assert sleeping["bos_token"]
    assert several.http.get("/props", params={"model": "nobody"}).status_code == 404


def test_anthropics_clients_get_their_list(live: Live) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    listed = live.http.get("/v1/models", headers=headers).json()
    first = listed["data"][0]
    assert (first["type"], first["id"], first["display_name"]) == ("model", "tiny", "tiny")
    assert first["created_at"].endswith("Z")
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "tiny", listed["data"][-1]["id"])
    assert live.http.get("/v1/models/tiny", headers=headers).json() == first
    assert live.http.get("/v1/models").json()["data"][0]["type"] == "llm", "of others"


def test_any_name_may_mean_the_default_model(pool: Pool, live: Live) -> None:
    assert live.chat(model="gpt-9", max_tokens=1).status_code == 404
    with running(pool, ServerSettings(any_model=True, drain_seconds=0.0)) as lenient:
        answer = lenient.chat(model="gpt-9", max_tokens=1)
        assert (answer.status_code, answer.json()["model"]) == (200, "tiny")
        assert lenient.http.post("/api/chat", json={"model": "gpt-9"}).status_code == 200
        assert lenient.http.get("/v1/models/gpt-9").status_code == 404
