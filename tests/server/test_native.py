"""llama-server's own routes, and LM Studio's list of models."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from localspec.runtime.pool import Pool
from localspec.server.extras.native import Infill, gap
from tests.server.conftest import CONTEXT
from tests.server.held import eventually
from tests.server.live import COPIED, COPY, Live, error_of, user

COLD = {"temperature": 0, "n_predict": 200}


def asked(live: Live, path: str = "/completion", **fields: Any) -> dict[str, Any]:
    response = live.http.post(path, json=COLD | fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def pieces(live: Live, path: str = "/completion", **fields: Any) -> list[dict[str, Any]]:
    """Data of all events of a stream, which has no [DONE]."""
    return live.stream(path, **COLD | fields)


@pytest.fixture
def prompt(live: Live) -> str:
    """What the model is shown for `COPY`, but for the token that begins every text."""
    text: str = live.http.post("/apply-template", json={"messages": [user(COPY)]}).json()["prompt"]
    return text.removeprefix("<|bos|>")


def test_a_text_goes_on(live: Live, prompt: str) -> None:
    body = asked(live, prompt=prompt, return_tokens=True)
    assert body["content"] == COPIED
    assert (body["stop"], body["stop_type"], body["stopping_word"]) == (True, "eos", "")
    assert (body["model"], body["index"], body["truncated"], body["has_new_line"]) == ("tiny", 0, False, False)
    assert body["prompt"] == f"<|bos|>{prompt}"
    assert body["tokens_predicted"] == len(body["tokens"]) > 10
    assert live.http.post("/detokenize", json={"tokens": body["tokens"]}).json()["content"].startswith(COPIED)
    assert body["timings"]["predicted_n"] == body["tokens_predicted"]
    assert body["generation_settings"]["n_predict"] == 200
    tokens = live.http.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
    same = asked(live, prompt=tokens)
    assert (same["content"], same["tokens_evaluated"], same["tokens"]) == (COPIED, body["tokens_evaluated"], [])


def test_a_stream_ends_with_how_it_went(live: Live, prompt: str) -> None:
    *found, last = pieces(live, prompt=prompt)
    assert "".join(piece["content"] for piece in found) == COPIED
    assert {piece["stop"] for piece in found} == {False}
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "eos")
    assert last["timings"]["predicted_n"] == last["tokens_predicted"]


def test_why_it_stopped(live: Live, prompt: str) -> None:
    cut = asked(live, prompt=prompt, n_predict=3)
    assert (cut["stop_type"], cut["tokens_predicted"]) == ("limit", 3)
    word = asked(live, prompt=prompt, stop=["lanterns in"])
    assert (word["stop_type"], word["stopping_word"]) == ("word", "lanterns in")
    assert word["content"] == "Maria bought 12 "


def test_a_prompt_is_only_read(live: Live, prompt: str) -> None:
    body = asked(live, prompt=prompt, n_predict=0)
    assert (body["content"], body["tokens_predicted"], body["tokens"]) == ("", 0, [])
    assert body["tokens_evaluated"] > 10
    (last,) = pieces(live, prompt=prompt, n_predict=0)
    assert (last["stop"], last["content"]) == (True, "")


def test_an_answer_with_a_line_ends_in_time(live: Live) -> None:
    endless: dict[str, Any] = {
        "prompt": "one\ntwo\n",
        "ignore_eos": True,
        "n_predict": 600,
        "grammar": 'root ::= ("a\\n")+',
    }
    body = asked(live, **endless, t_max_predict_ms=1)
    assert body["stop_type"] == "limit"
    assert 0 < body["tokens_predicted"] < 600
    assert body["has_new_line"] is True


def test_log_probabilities(live: Live, prompt: str) -> None:
    found = asked(live, prompt=prompt, n_predict=4, n_probs=3)["completion_probabilities"]
    assert [len(one["top_logprobs"]) for one in found] == [3] * 4
    assert "".join(one["token"] for one in found) == COPIED[: len("".join(one["token"] for one in found))]


def test_probabilities_that_tokens_were_drawn_by(live: Live, prompt: str) -> None:
    found = asked(live, prompt=prompt, n_predict=4, n_probs=10, post_sampling_probs=True)["completion_probabilities"]
    raw = asked(live, prompt=prompt, n_predict=4, n_probs=10)["completion_probabilities"]
    assert [one["id"] for one in found] == [one["id"] for one in raw]
    for one, plain in zip(found, raw, strict=True):
        assert set(one) == {"id", "token", "bytes", "prob", "top_probs"}
        assert one["prob"] == 1.0, "at temperature 0"
        assert [top["id"] for top in one["top_probs"]] == [top["id"] for top in plain["top_logprobs"]]
        assert [top["prob"] for top in one["top_probs"]] == [1.0] + [0.0] * 9
    warm: dict[str, Any] = {
        "temperature": 1.5,
        "top_k": 3,
        "min_p": 0.0,
        "top_p": 1.0,
        "seed": 1,
        "n_predict": 4,
        "n_probs": 5,
    }
    streamed = pieces(live, prompt=prompt, **warm, post_sampling_probs=True)
    warmed = [one for piece in streamed for one in piece.get("completion_probabilities", ())]
    assert len(warmed) == 4
    for one in warmed:
        probs = [top["prob"] for top in one["top_probs"]]
        assert sum(probs) == pytest.approx(1.0)
        assert probs == sorted(probs, reverse=True)
        assert probs[3:] == [0.0, 0.0]


def test_verbose_is_no_unknown_field(live: Live) -> None:
    response = live.chat(verbose=True, max_tokens=1)
    assert (response.status_code, response.headers.get("Localspec-Ignored-Fields")) == (200, None)
    assert "__verbose" not in response.json()


def test_a_gap_is_filled(live: Live, pool: Pool) -> None:
    """As /v1/completions fills it, which has no other files."""
    body = asked(live, "/infill", input_prefix="The castle is", input_suffix=" and tall.")
    other = live.complete("The castle is", suffix=" and tall.", temperature=0, max_tokens=200).json()
    lease = pool.lease(pool.default)
    repository, file = lease.engine.loaded.model.fill_in_files
    lease.release()
    if repository is None and file is None:
        assert body["content"] == other["choices"][0]["text"]
        assert body["tokens_evaluated"] == other["usage"]["prompt_tokens"]
    assert (
        "".join(
            piece["content"]
            for piece in pieces(live, "/infill", input_prefix="The castle is", input_suffix=" and tall.")
        )
        == body["content"]
    )


def test_what_llama_vim_sends_is_answered(live: Live) -> None:
    """The fields of its version of 2025, to warm up and to complete."""
    extra = [{"text": "def two():\n    return 2\n", "time": [1, 2], "filename": "two.py"}]
    common = {"input_extra": extra, "cache_prompt": True, "t_max_prompt_ms": 500, "samplers": [], "id_slot": 0}
    warm = asked(live, "/infill", input_prefix="", input_suffix="", prompt="", **common | {"n_predict": 0})
    assert warm["content"] == ""
    body = asked(
        live,
        "/infill",
        input_prefix="def one():\n",
        input_suffix="\n",
        prompt="    return",
        n_indent=4,
        top_k=40,
        top_p=0.9,
        stop=[],
        t_max_predict_ms=1000,
        response_fields=["content", "timings/prompt_n"],
        **common | {"n_predict": 8, "samplers": ["top_k", "top_p", "infill"]},
    )
    assert set(body) == {"content", "timings/prompt_n"}


def test_what_does_not_fit_loses_what_is_far_from_the_gap(pool: Pool) -> None:
    lease = pool.lease(pool.default)
    engine = lease.engine
    model = engine.loaded.model
    try:
        before, after, middle = model.fill_in or (0, 0, 0)
        long = " ".join(str(number) for number in range(3000))
        extra = [{"text": long}]
        given = {"input_prefix": long, "input_suffix": long, "prompt": "here", "input_extra": extra, "n_predict": 16}
        fields = Infill.model_validate(given)
        tokens = gap(fields, engine)
    finally:
        lease.release()
    assert len(tokens) <= CONTEXT - 16
    assert tokens[-1] == middle
    prefix = model.detokenize(tokens[tokens.index(before) + 1 : tokens.index(after)], special=False)
    suffix = model.detokenize(tokens[tokens.index(after) + 1 : -1], special=False)
    assert prefix.endswith("2998 2999here")
    assert long.startswith(suffix.strip())
    assert suffix


def test_vectors(live: Live) -> None:
    texts = ["A castle.", "The castle is violet."]
    data = live.http.post("/v1/embeddings", json={"input": texts}).json()["data"]
    found = live.http.post("/embedding", json={"content": texts}).json()
    assert found == [{"index": index, "embedding": [one["embedding"]]} for index, one in enumerate(data)]
    alone = live.http.post("/embedding", json={"input": texts[0], "embd_normalize": 2}).json()
    assert alone == found[:1]
    assert np.linalg.norm(alone[0]["embedding"][0]) == pytest.approx(1.0)


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
def test_nothing_ranks(live: Live, path: str) -> None:
    response = live.http.post(path, json={"query": "castle", "documents": ["a", "b"]})
    assert response.status_code == 501
    assert error_of(response)["type"] == "not_supported_error"


def test_there_are_no_adapters(live: Live) -> None:
    assert live.http.get("/lora-adapters").json() == []


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": ["a", "b"], "stream": True}, "A stream takes one prompt."),
        ("/completion", {"prompt": "a", "n": 2}, "n is more than 1"),
        ("/completion", {"prompt": "long " * 2000}, "maximum context length"),
        ("/completion", {"prompt": "a", "mirostat": 2}, "mirostat"),
        ("/infill", {"input_prefix": 7}, "input_prefix"),
        ("/infill", {"input_extra": [{"filename": "x"}]}, "text"),
        ("/embedding", {"content": "a", "embd_normalize": -1}, "embd_normalize"),
        ("/embedding", {"content": ""}, "empty"),
    ],
)
def test_what_cannot_be_done_is_refused(live: Live, path: str, fields: dict[str, Any], said: str) -> None:
    response = live.http.post(path, json=fields)
    assert response.status_code == 400
    assert said in error_of(response)["message"]
    assert eventually(lambda: not live.service.live["tiny"])


def test_lm_studios_list(live: Live) -> None:
    models = live.http.get("/api/v0/models").json()
    assert [one["id"] for one in models["data"]] == [one["name"] for one in live.http.get("/api/tags").json()["models"]]
    tiny = models["data"][0]
    assert (tiny["state"], tiny["loaded_context_length"], tiny["type"]) == ("loaded", CONTEXT, "llm")
    shown = live.http.post("/api/show", json={"model": "tiny"}).json()
    assert (tiny["arch"], tiny["quantization"]) == (shown["details"]["family"], shown["details"]["quantization_level"])
    assert tiny["max_context_length"] == shown["model_info"][f"{tiny['arch']}.context_length"]
    assert live.http.get("/api/v0/models/tiny").json() == tiny
    card = live.http.get("/v1/models").json()["data"][0]
    assert {key: card[key] for key in tiny} == tiny
    unknown = live.http.get("/api/v0/models/nobody")
    assert (unknown.status_code, json.loads(unknown.text)["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [user(COPY)], "temperature": 0}),
        ("completions", {"prompt": "The castle is", "max_tokens": 4, "temperature": 0}),
        ("embeddings", {"input": "a"}),
    ],
)
def test_lm_studios_routes_answer_as_openais_do(live: Live, path: str, body: dict[str, Any]) -> None:
    there, here = (live.http.post(f"/{api}/{path}", json=body) for api in ("api/v0", "v1"))
    assert there.status_code == 200
    kept = "data" if path == "embeddings" else "usage"
    assert there.json()[kept] == here.json()[kept] or kept == "usage"
    assert set(there.json()) == set(here.json())
    wrong = live.http.post(f"/api/v0/{path}", json={"model": 5})
    assert wrong.json()["error"]["type"] == "invalid_request_error", "OpenAI's shape"


def test_prompts_come_in_several_forms(live: Live, prompt: str) -> None:
    plain = asked(live, prompt=prompt)
    assert asked(live, prompt={"prompt_string": prompt})["content"] == COPIED
    assert asked(live, prompt=[prompt])["content"] == COPIED
    front, back = prompt[:20], prompt[20:]
    head = live.http.post("/tokenize", json={"content": front, "add_special": True}).json()["tokens"]
    mixed = asked(live, prompt=[*head, back])
    assert mixed["prompt"] == plain["prompt"]
    several = live.http.post("/completion", json=COLD | {"prompt": [prompt, {"prompt_string": "one"}, head]}).json()
    assert [one["index"] for one in several] == [0, 1, 2]
    assert (several[0]["content"], several[1]["prompt"]) == (COPIED, "<|bos|>one")
    refused: list[Any] = [[], [[]], {"prompt": "x"}, [1, None], [True]]
    for wrong in refused:
        assert live.http.post("/completion", json={"prompt": wrong}).status_code == 400


def test_settings_of_an_answer_say_what_is_banned(live: Live) -> None:
    assert asked(live, prompt="One", n_predict=2)["generation_settings"]["logit_bias"] == []
    body = asked(live, prompt="One", n_predict=2, ignore_eos=True, logit_bias=[[5, False], [7, 1.5]])
    first, second, *ends = body["generation_settings"]["logit_bias"]
    assert (first, second) == ({"token": 5, "bias": None}, {"token": 7, "bias": 1.5})
    assert ends
    assert {one["bias"] for one in ends} == {None}


def test_an_answer_that_fills_the_context_is_truncated(live: Live) -> None:
    body = asked(live, prompt="one " * (CONTEXT - 20), n_predict=-1, ignore_eos=True)
    assert (body["truncated"], body["stop_type"]) == (True, "limit")


def test_fields_that_are_asked_for_are_told_alone(live: Live, prompt: str) -> None:
    names = ["content", "generation_settings/n_predict", "timings/prompt_n", "nothing/here"]
    body = asked(live, prompt=prompt, response_fields=names)
    assert list(body) == names[:3]
    assert (body["content"], body["generation_settings/n_predict"]) == (COPIED, 200)
    *found, last = pieces(live, prompt=prompt, response_fields=names)
    assert list(last) == names[:3]
    assert "".join(piece["content"] for piece in found) == COPIED
    assert asked(live, prompt=prompt, response_fields=[])["stop"] is True, "all"


def test_a_stream_has_the_tokens_and_how_far_the_prompt_is(live: Live, prompt: str) -> None:
    found = pieces(live, prompt=prompt, return_progress=True)
    told = [piece["prompt_progress"] for piece in found if "prompt_progress" in piece]
    total = found[-1]["tokens_evaluated"]
    assert (told[-1]["processed"], told[-1]["total"]) == (total, total)
    assert 0 <= told[-1]["cache"] <= total
    assert [one["processed"] for one in told] == sorted({one["processed"] for one in told})
    tokens = [token for piece in found for token in piece["tokens"]]
    assert live.http.post("/detokenize", json={"tokens": tokens}).json()["content"].startswith(COPIED)
    assert not any("prompt_progress" in piece for piece in pieces(live, prompt=prompt))
    *chunks, done = live.stream("/v1/chat/completions", messages=[user(COPY)], return_progress=True)
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert told[-1]["processed"] == told[-1]["total"]
    assert done == "[DONE]"
