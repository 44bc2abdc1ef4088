"""What real clients send besides what is known: ignored and named, or refused because it would change the answer."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from localspec.server.http.meter import MOST_REMEMBERED, IgnoredNames
from localspec.server.http.reading import HEADER, LONGEST_NAME, MOST_NAMES, SWITCHES
from tests.server.live import COPIED, COPY, Live, error_of, user

DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [user("x")], "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/messages": {"messages": [user("x")], "max_tokens": 1},
    "/v1/embeddings": {"input": "x"},
}
FORGERIES = (
    "a\r\nSet-Cookie: evil=1",
    "b\nWARNING all is well",
    "c\x1b[31m\x00\x7f\u2028\u0085d",
    "é" * 500,
    "n" * 5000,
    "ｆｕｌｌ e, f: g",
    "",
)


@pytest.mark.parametrize("path", DIALECTS)
def test_unknown_fields_and_nulls_are_ignored_in_every_dialect(live: Live, path: str) -> None:
    response = live.http.post(path, json=DIALECTS[path] | {"unheardOf": {"a": [1]}, "mirostat": None, "user": None})
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == "unheardOf"
    assert HEADER not in live.http.post(path, json=DIALECTS[path]).headers


@pytest.mark.parametrize("path", DIALECTS)
def test_what_would_change_the_answer_is_refused_in_every_dialect(live: Live, path: str) -> None:
    response = live.http.post(path, json=DIALECTS[path] | {"mirostat": 2})
    assert response.status_code == 400
    assert "mirostat is not supported" in response.json()["error"]["message"]


def test_unknown_fields_inside_are_ignored_too(live: Live) -> None:
    part = {"type": "text", "text": COPY, "detail": 1}
    message = user([part]) | {"toolCalls": 5, "name": None}
    response = live.http.post("/v1/chat/completions", json={"messages": [message], "temperature": 0})
    assert response.json()["choices"][0]["message"]["content"] == COPIED
    assert response.headers[HEADER] == "toolCalls, detail"


def test_a_stream_names_them_too(live: Live) -> None:
    body = DIALECTS["/v1/chat/completions"] | {"stream": True, "unheardOf": 1}
    assert live.http.post("/v1/chat/completions", json=body).headers[HEADER] == "unheardOf"


@pytest.mark.parametrize("name", sorted(set(SWITCHES) - {"messages"}))
def test_a_field_of_the_list_is_refused_where_it_is_on_and_ignored_where_it_is_off(live: Live, name: str) -> None:
    fields: dict[str, Any] = {name: 7}
    error = error_of(live.chat("x", max_tokens=1, **fields))
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    for off in (None, *SWITCHES[name]):
        fields = {name: off}
        assert live.chat("x", max_tokens=1, **fields).status_code == 200


@pytest.mark.parametrize(("other", "own"), [("n_predict", "max_tokens"), ("repetition_penalty", "repeat_penalty")])
def test_other_names_of_a_field_mean_the_same(live: Live, other: str, own: str) -> None:
    fields: dict[str, Any] = {other: 3}
    body = live.chat(temperature=0, **fields)
    fields = {own: 3}
    assert HEADER not in body.headers
    assert body.json()["choices"][0]["message"] == live.chat(temperature=0, **fields).json()["choices"][0]["message"]
    fields = {other: 3, own: 4}
    assert error_of(live.chat(**fields))["param"] == other


def test_no_header_and_no_line_of_the_log_can_be_forged(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.service.ignored = IgnoredNames()
    with caplog.at_level(logging.INFO, "localspec.server"):
        for name in FORGERIES:
            response = live.http.post("/v1/completions", json=DIALECTS["/v1/completions"] | {name: 1})
            assert response.status_code == 200
            assert "set-cookie" not in response.headers
            told = response.headers.get(HEADER, "")
            assert re.fullmatch(rf"[A-Za-z0-9_.-]{{0,{LONGEST_NAME}}}", told)
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.isascii() and line.isprintable() and len(line) < 200 for line in lines)
    assert sum(line.startswith("Ignored unknown fields") for line in lines) == len(FORGERIES) - 2  # nothing left of two


def test_thousands_of_fields_are_told_in_small_numbers(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.service.ignored = IgnoredNames()
    with caplog.at_level(logging.WARNING, "localspec.server"):
        for turn in range(15):
            fields = {f"field_{turn}_{number}": 1 for number in range(3000)}
            response = live.http.post("/v1/completions", json=DIALECTS["/v1/completions"] | fields)
            assert len(response.headers[HEADER].split(", ")) == MOST_NAMES
    told = re.findall(r"field_\d+_\d+", caplog.text)
    assert len(told) == len(set(told)) == MOST_REMEMBERED


def test_a_name_is_told_once(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.service.ignored = IgnoredNames()
    with caplog.at_level(logging.WARNING, "localspec.server"):
        for _ in range(3):
            live.http.post("/v1/completions", json=DIALECTS["/v1/completions"] | {"unheardOf": 1})
    assert caplog.text.count("unheardOf") == 1
