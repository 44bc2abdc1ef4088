"""Ollama's API: which models there are and what they are, and the page about the server."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone

import pytest

from localspec import __version__
from localspec.gguf import read_header
from localspec.runtime.pool import Pool
from localspec.server.http.settings import ServerSettings
from tests.server.conftest import CONTEXT, SLOTS
from tests.server.live import Live, running


def time_of(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(f"{text[:-1]}+00:00")


def test_the_version_is_ollamas_and_ours(live: Live) -> None:
    body = live.http.get("/api/version").json()
    assert [int(part) for part in body["version"].split(".")] >= [0, 6, 4]  # what editors ask for at least
    assert body["localspec"] == __version__


def test_tags_are_the_models_of_the_other_list(live: Live, pool: Pool) -> None:
    models = live.http.get("/api/tags").json()["models"]
    names = [card["id"] for card in live.http.get("/v1/models").json()["data"]]
    assert [one["name"] for one in models] == [one["model"] for one in models] == names
    tiny = models[0]
    path = pool.files("tiny").target
    header = read_header(path)
    assert tiny["size"] == path.stat().st_size
    head = path.read_bytes()[: 1 << 20] + tiny["size"].to_bytes(8, "little")
    assert tiny["digest"] == hashlib.sha256(head).hexdigest()
    assert tiny["details"]["family"] == header.architecture
    assert tiny["details"]["families"] == [header.architecture]
    assert tiny["details"]["quantization_level"] == header.quantisation
    assert tiny["details"]["parameter_size"] == f"{header.parameters / 1e6:.2f}M"
    assert time_of(tiny["modified_at"]) <= datetime.now(timezone.utc)


def test_ps_tells_what_is_in_memory(live: Live) -> None:
    (one,) = [one for one in live.http.get("/api/ps").json()["models"] if one["name"] == "tiny"]
    tag = live.http.get("/api/tags").json()["models"][0]
    assert one["context_length"] == CONTEXT
    assert one["digest"] == tag["digest"]
    assert 0 < one["size"] <= tag["size"]
    assert one["size_vram"] in (0, one["size"])
    assert time_of(one["expires_at"]).year > 2300  # nothing unloads it


def test_ps_tells_when_a_model_leaves(live: Live, pool: Pool) -> None:
    pool.idle_unload = 300.0
    try:
        (one,) = [one for one in live.http.get("/api/ps").json()["models"] if one["name"] == "tiny"]
    finally:
        pool.idle_unload = None
    assert (time_of(one["expires_at"]) - datetime.now(timezone.utc)).total_seconds() <= 300


def test_show_tells_the_metadata(live: Live, pool: Pool) -> None:
    header = read_header(pool.files("tiny").target)
    body = live.http.post("/api/show", json={"model": "tiny"}).json()
    assert body["template"] == header.chat_template
    assert body["model_info"]["general.architecture"] == header.architecture
    assert body["model_info"][f"{header.architecture}.context_length"] == header.context_length
    assert body["model_info"]["general.parameter_count"] == header.parameters
    assert body["model_info"]["tokenizer.ggml.tokens"] is None
    assert body["capabilities"][:2] == ["completion", "tools"]
    assert "FROM tiny" in body["modelfile"]
    assert str(header.path.parent) not in str(body)


@pytest.mark.parametrize("fields", [{"name": "tiny"}, {"model": "tiny:latest"}, {}, {"model": "tiny", "verbose": True}])
def test_a_model_has_several_names(live: Live, fields: dict[str, object]) -> None:
    assert live.http.post("/api/show", json=fields).json() == live.http.post("/api/show", json={"model": "tiny"}).json()


def test_errors_have_ollamas_shape(live: Live) -> None:
    unknown = live.http.post("/api/show", json={"model": "nobody"})
    assert unknown.status_code == 404
    assert set(unknown.json()) == {"error"}
    assert unknown.json()["error"].startswith("model 'nobody' not found. There are: ")
    wrong = live.http.post("/api/show", json={"model": 7})
    assert (wrong.status_code, set(wrong.json())) == (400, {"error"})
    assert "model" in wrong.json()["error"]
    nowhere = live.http.post("/api/push", json={})
    assert (nowhere.status_code, nowhere.json()) == (404, {"error": "There is no path '/api/push' here."})
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": live.url}
    sent = live.http.post("/api/show", content="{}", headers=form)
    assert (sent.status_code, set(sent.json())) == (415, {"error"})


def test_the_page_says_what_runs_and_how_to_connect(live: Live) -> None:
    response = live.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert f"{live.url}/v1" in response.text
    assert f"<td>tiny</td><td>{CONTEXT}</td>" in response.text
    assert f"of {SLOTS}</td>" in response.text
    assert "<script" not in response.text
    head = live.http.head("/")
    assert (head.status_code, head.content) == (200, b"")


def test_a_host_header_is_no_markup(live: Live) -> None:
    text = live.http.get("/", headers={"Host": "<b>.localhost"}).text
    assert "<b>.localhost" not in text


def test_the_page_needs_the_key_and_says_that_there_is_one(pool: Pool) -> None:
    with running(pool, ServerSettings(api_keys=("right",), drain_seconds=0.0), key="right") as live:
        assert "API key" in live.http.get("/").text
        refused = live.http.get("/api/tags", headers={"Authorization": "Bearer wrong"})
        assert (refused.status_code, set(refused.json())) == (401, {"error"})


def test_an_alias_is_a_name_of_the_model_everywhere(pool: Pool) -> None:
    with running(pool, ServerSettings(aliases=("small",), drain_seconds=0.0)) as live:
        tags = live.http.get("/api/tags").json()["models"]
        assert [one["name"] for one in tags[:2]] == ["tiny", "small"]
        assert tags[0]["digest"] == tags[1]["digest"]
        for name in ("tiny", "tiny:latest", "small", "small:latest"):
            done = live.http.post("/api/pull", json={"model": name, "stream": False})
            assert (done.status_code, done.json()) == (200, {"status": "success"}), name
