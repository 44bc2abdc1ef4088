"""/slots: what is answered now, under llama-server's names, and nothing of what was said."""

from __future__ import annotations

from tests.server.conftest import CONTEXT, SLOTS
from tests.server.held import eventually, held
from tests.server.live import Live, error_of

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
