"""/slots: what is answered now, under llama-server's names, and nothing of what was said."""

from __future__ import annotations

from tests.server.conftest import CONTEXT, SLOTS
from tests.server.held import Stop, eventually, held, send
from tests.server.live import Live, engine_of, error_of

SECRET = "secret words"
ENDLESS = {"prompt": SECRET, "ignore_eos": True, "stream": True, "speculative": {"enabled": False}}


def test_idle_slots(live: Live) -> None:
    assert eventually(lambda: not live.service.live["tiny"])
    found = live.http.get("/slots").json()
    assert [slot["id"] for slot in found] == list(range(SLOTS))
    assert all(
        slot == {"id": slot["id"], "n_ctx": CONTEXT, "speculative": True, "is_processing": False} for slot in found
    )
    assert live.http.get("/slots", params={"fail_on_no_slot": "1"}).status_code == 200


def test_a_slot_at_work(live: Live) -> None:
    asked = ENDLESS | {"max_tokens": 900, "seed": 7, "temperature": 0.5, "logit_bias": {"5": False}}
    with held(live, "/v1/completions", asked):
        response = live.http.get("/slots")
        busy = [slot for slot in response.json() if slot["is_processing"]]
    assert SECRET not in response.text
    (slot,) = busy
    assert slot["speculative"] is False
    assert slot["n_prompt_tokens"] > 1
    assert slot["n_prompt_tokens_cache"] + slot["n_prompt_tokens_processed"] == slot["n_prompt_tokens"]
    params = slot["params"]
    assert (params["seed"], params["temperature"], params["max_tokens"], params["top_k"]) == (7, 0.5, 900, 40)
    assert params["logit_bias"] == [[5, False]]
    (token,) = slot["next_token"]
    assert token == {"has_next_token": True, "n_decoded": 1, "n_remain": 899}
    assert slot["timings"]["draft_n"] == 0


def test_a_prompt_is_counted_as_it_is_read(live: Live) -> None:
    """In /slots and in /metrics: held after its first chunk, and when it is over."""

    def counted() -> float:
        lines = live.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("llamacpp:prompt_tokens_total"))

    assert eventually(lambda: not live.service.live["tiny"])
    engine = engine_of(live.service.pool)
    engine.forget()
    grid = engine.loaded.context.grid
    before, prompt = counted(), [7 + number % 90 for number in range(grid + 100)]
    first, second = Stop(engine), Stop(engine)
    first.queue()
    try:
        assert first.begun.wait(60)
        asking = send(live, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})
        assert eventually(lambda: live.service.live["tiny"] == 1)
        second.queue()  # its turn is after one step of the loop
        first.end()
        assert second.begun.wait(60)
        (slot,) = [slot for slot in live.http.get("/slots").json() if slot["is_processing"]]
        read = slot["n_prompt_tokens_processed"]
        assert slot["n_prompt_tokens"] == len(prompt)
        assert 0 < read <= grid, "one piece: a slow machine reads less than a chunk at once"
        assert counted() - before == read
    finally:
        first.end()
        second.end()
    assert asking.recv(16).startswith(b"HTTP/1.1 200")
    asking.close()
    assert counted() - before == len(prompt)


def test_all_slots_busy(live: Live) -> None:
    with held(live, "/v1/completions", ENDLESS | {"n": SLOTS}, SLOTS):
        assert sum(slot["is_processing"] for slot in live.http.get("/slots").json()) == SLOTS
        refused = live.http.get("/slots", params={"fail_on_no_slot": "1"})
    assert refused.status_code == 503
    assert error_of(refused)["type"] == "unavailable_error"


def test_slots_of_other_models(live: Live) -> None:
    """Asking does not load one."""
    assert live.http.get("/slots", params={"model": "tiny-target"}).json() == []
    assert live.http.get("/slots", params={"model": "nobody"}).status_code == 404
