"""/v1/embeddings: vectors of length 1, in both encodings, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from localspec.runtime.generation import Generation
from localspec.runtime.pool import Pool
from localspec.server.http.settings import ServerSettings
from tests.server.conftest import CONTEXT
from tests.server.held import eventually, send, stopped
from tests.server.live import Live, engine_of, error_of, running

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


def test_a_text_may_be_in_pieces_or_in_an_object(live: Live) -> None:
    head = live.http.post("/tokenize", json={"content": "A", "add_special": True}).json()["tokens"]
    parts = {"content": [{"type": "text", "text": "A "}, {"type": "text", "text": "castle."}]}
    alone = vectors(live, "A castle.")
    given: list[Any] = [parts, {"prompt_string": "A castle."}, [*head, " castle."], ["A", *head[1:]]]
    for one in given[:3]:
        assert vectors(live, one) == alone
    assert vectors(live, [*given, "A castle."]) == [*alone * 3, *vectors(live, given[3]), *alone]
    native = live.http.post("/embedding", json={"content": [parts, given[2]]}).json()
    assert [one["embedding"] for one in native] == [alone, alone]


def test_base64_holds_the_same_numbers(live: Live) -> None:
    (plain,), (packed,) = vectors(live, "A castle."), vectors(live, "A castle.", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), dtype="<f4").tolist() == pytest.approx(plain)


def test_dimensions_shorten_vectors(live: Live) -> None:
    (whole,), (short,) = vectors(live, "A castle."), vectors(live, "A castle.", dimensions=64)
    assert len(short) == 64
    assert np.linalg.norm(short) == pytest.approx(1.0)
    assert short == pytest.approx((np.array(whole[:64]) / np.linalg.norm(whole[:64])).tolist())
    assert vectors(live, "A castle.", dimensions=256) == [whole]
    refused = live.http.post(PATH, json={"input": "A castle.", "dimensions": 257})
    assert refused.status_code == 400
    assert error_of(refused)["message"] == "dimensions is 257; this model's vectors have 256."


def test_embedding_does_not_disturb_an_answer(live: Live) -> None:
    before = live.chat(temperature=0).json()["choices"][0]["message"]["content"]
    vectors(live, "A castle.")
    assert live.chat(temperature=0).json()["choices"][0]["message"]["content"] == before


@pytest.mark.parametrize(
    "given",
    [
        *("", [], [""], ["a", ""], [[]], [[-1]], [[4096]], [2**31], None, {"a": 1}, [["a"]], "long " * 2000),
        *({"content": "a"}, {"content": []}, {"content": [{"type": "image_url"}]}, ["a", 4096]),
    ],
)
def test_what_cannot_be_embedded_is_refused(live: Live, given: Any) -> None:
    response = live.http.post(PATH, json={"input": given})
    assert response.status_code == 400
    assert error_of(response)["param"].startswith("input")


def test_a_running_answer_goes_on_while_texts_are_read(pool: Pool) -> None:
    """A pass of it is made between any two passes of an embedding, or of log-probabilities."""
    lease = pool.lease(pool.default)
    engine = lease.engine
    tokens = engine.tokenize("one two three four five " * 60)[: CONTEXT - 1]
    for read in (engine.embed, partial(engine.score, top=0)):
        answer = engine.generate("One day", ignore_end=True, drafter="none")
        seen: list[int] = []

        def look(answer: Generation = answer, seen: list[int] = seen) -> bool:
            """Called before each pass of the embedding."""
            list(answer.poll())
            seen.append(answer.stats.passes)
            return False

        read(tokens, cancel=look)
        answer.cancel()
        answer.text()
        assert len(seen) > 2
        assert seen[-1] - seen[0] >= len(seen) - 2
    lease.release()


def test_nothing_is_read_for_a_client_that_has_left(live: Live) -> None:
    def read() -> float:
        lines = live.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("llamacpp:prompt_tokens_total"))

    before, texts = read(), 2000
    with stopped(engine_of(live.service.pool)):
        leaving = send(live, PATH, {"input": ["A castle."] * texts})
        assert eventually(lambda: live.service.reading == 1)
        leaving.close()
    assert eventually(lambda: not live.service.reading)
    assert read() - before < texts


@pytest.fixture
def narrow(pool: Pool) -> Iterator[Live]:
    with running(pool, ServerSettings(max_queue=0, drain_seconds=0.0)) as server:
        yield server


def test_texts_that_wait_are_bounded_too(narrow: Live) -> None:
    with ThreadPoolExecutor(1) as crowd:
        with stopped(engine_of(narrow.service.pool)):
            first = crowd.submit(httpx.post, f"{narrow.url}{PATH}", json={"input": "A castle."}, timeout=60)
            assert eventually(lambda: narrow.service.reading == 1)
            refused = narrow.http.post(PATH, json={"input": "A castle."})
        assert first.result().status_code == 200
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0


def test_who_is_admitted_has_all_texts_read(narrow: Live) -> None:
    """Others, who try all the time and may be refused, do not come between two texts of a request."""
    codes: list[int] = []

    def ask(texts: int) -> int:
        return httpx.post(f"{narrow.url}{PATH}", json={"input": ["A castle."] * texts}, timeout=60).status_code

    def insist(admitted: Future[int]) -> None:
        while not admitted.done():
            codes.append(ask(1))

    with ThreadPoolExecutor(3) as crowd:
        with stopped(engine_of(narrow.service.pool)):
            admitted = crowd.submit(ask, 40)
            assert eventually(lambda: narrow.service.reading == 1)
            others = [crowd.submit(insist, admitted) for _ in range(2)]
            assert eventually(lambda: 503 in codes)
        assert admitted.result() == 200
        for other in others:
            other.result()
    assert set(codes) <= {200, 503}
