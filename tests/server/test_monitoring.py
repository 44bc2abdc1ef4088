"""/health, /metrics, /props, /v1/models, and the small text routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from localspec.runtime.pool import Pool
from localspec.server.http.app import create_app
from localspec.server.http.settings import ServerSettings
from tests.server.conftest import CONTEXT, SLOTS
from tests.server.held import held
from tests.server.live import COPY, Live, error_of, running


@pytest.fixture
def fresh(pool: Pool) -> Iterator[Live]:
    """A server that has counted nothing yet."""
    with running(pool, ServerSettings(aliases=("gpt-4o", "default"), drain_seconds=0.0)) as server:
        yield server


def samples(server: Live) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = server.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


@pytest.mark.usefixtures("always_looked_up")
def test_totals_match_the_requests(fresh: Live) -> None:
    before = samples(fresh)
    assert before["llamacpp:tokens_predicted_total", ()] == 0
    bodies = [fresh.chat(temperature=0, seed=seed).json() for seed in range(3)]
    after = samples(fresh)
    timings = [body["timings"] for body in bodies]
    stats = [body["localspec"][0]["stats"] for body in bodies]
    assert after["llamacpp:tokens_predicted_total", ()] == sum(one["predicted_n"] for one in timings)
    assert after["llamacpp:prompt_tokens_total", ()] == sum(one["prompt_n"] for one in timings)
    assert after["llamacpp:prompt_tokens_cached_total", ()] == sum(one["cache_n"] for one in timings) > 0
    assert after["llamacpp:n_decode_total", ()] == sum(one["passes"] for one in stats)
    for prefix, labels in (("llamacpp", ()), ("vllm", (("model_name", "tiny"),))):
        name = f"{prefix}:spec_decode_num"
        assert after[f"{name}_draft_tokens_total", labels] == sum(one["draft_n"] for one in timings) > 0
        assert after[f"{name}_accepted_tokens_total", labels] == sum(one["draft_n_accepted"] for one in timings)
        assert after[f"{name}_drafts_total", labels] == sum(one["draft_passes"] for one in stats)
        for position in range(4):
            key = tuple(sorted((*labels, ("position", str(position)))))
            wanted = sum((one["accepted_per_position"] + [0] * 4)[position] for one in stats)
            assert after.get((f"{name}_accepted_tokens_per_pos_total", key), 0) == wanted
    assert after["localspec:answers_total", (("exact", "true"), ("finish", "stop"), ("model", "tiny"))] == 3
    assert after["vllm:time_to_first_token_seconds_count", (("model_name", "tiny"),)] == 3
    assert after["llamacpp:requests_processing", ()] == after["llamacpp:requests_deferred", ()] == 0
    assert 0 < after["llamacpp:predicted_tokens_seconds", ()] < 1e6
    assert not [name for name, _ in after if name.endswith("_created")]


def test_what_runs_is_a_gauge(live: Live) -> None:
    sent = {"prompt": "x", "ignore_eos": True, "n": SLOTS + 2, "stream": True, "speculative": {"enabled": False}}
    with held(live, "/v1/completions", sent, SLOTS + 2):
        found = samples(live)
    assert found["llamacpp:requests_processing", ()] == found["vllm:num_requests_running", ()] == SLOTS
    assert found["llamacpp:requests_deferred", ()] == found["vllm:num_requests_waiting", ()] == 2


def test_texts_that_are_only_read_are_counted(fresh: Live) -> None:
    before = samples(fresh)
    used = fresh.http.post("/v1/embeddings", json={"input": ["A castle.", COPY]}).json()["usage"]["prompt_tokens"]
    after = samples(fresh)
    for name, labels in (("llamacpp:prompt_tokens_total", ()), ("vllm:prompt_tokens_total", (("model_name", "tiny"),))):
        assert after[name, labels] - before.get((name, labels), 0) == used
    assert after["llamacpp:prompt_seconds_total", ()] > before["llamacpp:prompt_seconds_total", ()]


def test_before_the_model_is_there_health_says_so(pool: Pool) -> None:
    with TestClient(create_app(pool), base_url="http://localhost") as client:
        response = client.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "Loading model"
    assert int(response.headers["Retry-After"]) > 0


def test_the_default_model_comes_first(fresh: Live) -> None:
    body = fresh.http.get("/v1/models").json()
    assert body["object"] == "list"
    card = body["data"][0]
    assert (card["id"], card["object"], card["owned_by"], card["status"]) == ("tiny", "model", "localspec", "loaded")
    assert card["aliases"] == ["gpt-4o", "default"]
    assert card["created"] > 1.7e9
    assert card["meta"]["n_ctx"] == CONTEXT
    assert card["meta"]["n_vocab"] == 4096
    assert 5e6 < card["meta"]["n_params"] < 7e6
    assert card["meta"]["draft"] == "tiny-draft-q8_0.gguf"
    names = {one["id"] for one in body["data"]}
    assert {"tiny", "tiny-target", "tiny-draft"} <= names


def test_one_model(fresh: Live) -> None:
    for name in ("tiny", "gpt-4o"):
        assert fresh.http.get(f"/v1/models/{name}").json()["id"] == "tiny"
    assert fresh.http.get("/models/tiny-target").json()["status"] == "unloaded"
    response = fresh.http.get("/v1/models/someone/else:Q4_K_M")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


@pytest.mark.parametrize("name", ["nope", "../../etc/passwd", "/etc/passwd", "x" * 5000, "user/repo:Q8_0", "tiny.gguf"])
def test_a_model_that_is_not_there(live: Live, name: str) -> None:
    for response in (live.chat(model=name), live.complete("x", model=name)):
        assert response.status_code == 404
        error = error_of(response)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "tiny" in error["message"]
        assert len(error["message"]) < 400


def test_an_alias_and_no_name_are_the_default(fresh: Live) -> None:
    for name in (None, "", "gpt-4o", "tiny"):
        assert fresh.chat(model=name, max_tokens=1).json()["model"] == "tiny"


def test_props(live: Live) -> None:
    body = live.http.get("/props").json()
    assert body["total_slots"] == SLOTS
    assert body["default_generation_settings"]["n_ctx"] == CONTEXT
    assert body["default_generation_settings"]["params"]["temperature"] == 0.8
    assert "messages" in body["chat_template"]
    assert body["speculative"]["exact"] == "strict"
    assert live.http.get("/props", params={"model": "nope"}).status_code == 404


@pytest.mark.parametrize("text", ["What is the capital of France?", "", "á 日本 🎉", COPY])
def test_tokens_and_back(live: Live, text: str) -> None:
    tokens = live.http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert live.http.post("/detokenize", json={"tokens": tokens}).json() == {"content": text}
    pieces = live.http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    whole = b"".join(
        bytes(piece["piece"]) if isinstance(piece["piece"], list) else piece["piece"].encode() for piece in pieces
    )
    assert whole.decode() == text


def test_special_tokens(live: Live) -> None:
    special = live.http.post("/tokenize", json={"content": "<|user|>"}).json()["tokens"]
    plain = live.http.post("/tokenize", json={"content": "<|user|>", "parse_special": False}).json()["tokens"]
    assert len(special) == 1 < len(plain)
    assert live.http.post("/detokenize", json={"tokens": special}).json() == {"content": "<|user|>"}
    assert live.http.post("/detokenize", json={"tokens": [4096]}).status_code == 400


def test_the_openapi_document_is_there(live: Live) -> None:
    document = live.http.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics"} <= set(document["paths"])
    assert "/chat/completions" not in document["paths"]
    assert "422" not in document["paths"]["/v1/chat/completions"]["post"]["responses"]
