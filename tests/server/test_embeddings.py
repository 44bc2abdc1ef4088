"""/v1/embeddings: vectors of length 1, in both encodings, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.server.live import Live, error_of

PATH = "/v1/embeddings"


def vectors(live: Live, given: Any, **fields: Any) -> list[Any]:
    response = live.http.post(PATH, json={"input": given} | fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "list"
    assert body["model"] == "tiny"
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0
    assert [one["index"] for one in body["data"]] == list(range(len(body["data"])))
    return [one["embedding"] for one in body["data"]]


def test_vectors_of_texts(live: Live) -> None:
    found = np.array(vectors(live, ["A castle.", "The castle is violet.", "A castle."]))
    assert found.shape == (3, 256)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1.0)
    assert np.array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1])


def test_a_text_alone_and_its_tokens_are_the_same(live: Live) -> None:
    (alone,) = vectors(live, "A castle.")
    tokens = live.http.post("/tokenize", json={"content": "A castle.", "add_special": True}).json()["tokens"]
    assert vectors(live, tokens) == vectors(live, [tokens]) == [alone]


def test_base64_holds_the_same_numbers(live: Live) -> None:
    (plain,), (packed,) = vectors(live, "A castle."), vectors(live, "A castle.", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), dtype="<f4").tolist() == pytest.approx(plain)


def test_embedding_does_not_disturb_an_answer(live: Live) -> None:
    before = live.chat(temperature=0).json()["choices"][0]["message"]["content"]
    vectors(live, "A castle.")
    assert live.chat(temperature=0).json()["choices"][0]["message"]["content"] == before


@pytest.mark.parametrize(
    "given",
    ["", [], [""], ["a", ""], [[]], [[-1]], [[4096]], [2**31], ["a", 1], None, {"a": 1}, [["a"]], "long " * 2000],
)
def test_what_cannot_be_embedded_is_refused(live: Live, given: Any) -> None:
    response = live.http.post(PATH, json={"input": given})
    assert response.status_code == 400
    assert error_of(response)["param"].startswith("input")


def test_dimensions_are_not_ours_to_choose(live: Live) -> None:
    response = live.http.post(PATH, json={"input": "a", "dimensions": 5})
    assert (response.status_code, error_of(response)["param"]) == (400, "dimensions")
