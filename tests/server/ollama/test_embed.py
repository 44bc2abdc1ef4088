"""Ollama's API: texts as vectors, which are those of /v1/embeddings."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.conftest import CONTEXT
from tests.server.live import Live

TEXTS = ["A castle.", "The castle is violet."]


def embed(live: Live, **fields: Any) -> httpx.Response:
    return live.http.post("/api/embed", json={"model": "tiny"} | fields)


def openai(live: Live, given: Any) -> list[list[float]]:
    data = live.http.post("/v1/embeddings", json={"input": given}).json()["data"]
    return [one["embedding"] for one in data]


def test_vectors_are_those_of_the_other_api(live: Live) -> None:
    body = embed(live, input=TEXTS, keep_alive="5m", options={"num_ctx": 512}).json()
    assert body["model"] == "tiny"
    assert body["embeddings"] == openai(live, TEXTS)
    assert 0 <= body["load_duration"] < body["total_duration"]
    counted = [live.http.post("/tokenize", json={"content": text, "add_special": True}).json() for text in TEXTS]
    assert body["prompt_eval_count"] == sum(len(one["tokens"]) for one in counted)
    assert embed(live, input=TEXTS[0]).json()["embeddings"] == body["embeddings"][:1]
    older = live.http.post("/api/embeddings", json={"model": "tiny", "prompt": TEXTS[0]}).json()
    assert older == {"embedding": body["embeddings"][0]}


def test_dimensions_shorten_vectors(live: Live) -> None:
    (whole,), (short,) = openai(live, TEXTS[0]), embed(live, input=TEXTS[0], dimensions=64).json()["embeddings"]
    assert short == pytest.approx((np.array(whole[:64]) / np.linalg.norm(whole[:64])).tolist())
    assert embed(live, input=TEXTS[0], dimensions=0).json()["embeddings"] == [whole]
    assert embed(live, input=TEXTS[0], dimensions=9999).json()["embeddings"] == [whole]


def test_long_texts_are_cut_or_refused(live: Live) -> None:
    long = "A castle is violet. " * CONTEXT
    body = embed(live, input=long).json()
    assert body["prompt_eval_count"] == CONTEXT
    assert embed(live, input=long + "More.").json()["embeddings"] == body["embeddings"]
    refused = embed(live, input=long, truncate=False)
    assert refused.status_code == 400
    assert "maximum context length" in refused.json()["error"]


def test_nothing_to_embed_only_loads(live: Live) -> None:
    for given in ([], "", [""]):
        body = embed(live, input=given).json()
        assert (body["embeddings"], body["prompt_eval_count"]) == ([], 0)
    assert live.http.post("/api/embeddings", json={"model": "tiny"}).json() == {"embedding": []}


def test_what_cannot_be_done_is_refused(live: Live) -> None:
    assert embed(live, model="nobody", input="x").status_code == 404
    for fields in ({"input": 7}, {"input": "x", "dimensions": -1}, {"input": "x", "keep_alive": "soon"}):
        response = embed(live, **fields)
        assert (response.status_code, set(response.json())) == (400, {"error"})
