"""What other programs' clients ask for and is not here: 404, as for any other path; and HEAD wherever GET is."""

from __future__ import annotations

import pytest

from tests.server.live import Live, error_of


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("PATCH", "/v1/responses/resp_1"),
        ("DELETE", "/v1/models/tiny"),
        ("POST", "/v1/models/some/model"),
        ("GET", "/v1/chat/completions"),
        ("GET", "/v1/chat/completions/chatcmpl-1"),
        ("GET", "/v1/responses"),
        ("POST", "/props"),
        ("POST", "/slots/0?action=erase"),
        ("POST", "/lora-adapters"),
    ],
)
def test_what_is_not_here_is_not_found(live: Live, method: str, path: str) -> None:
    response = live.http.request(method, path, json=None if method == "GET" else {})
    assert response.status_code == 404
    assert error_of(response)["type"] == "not_found_error"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/tiny", "/metrics", "/slots", "/props", "/x"])
def test_head_is_get_without_a_body(live: Live, path: str) -> None:
    asked, head = live.http.get(path), live.http.head(path)
    assert head.status_code == asked.status_code
    assert head.headers["Content-Type"] == asked.headers["Content-Type"]
    assert head.content == b""


def test_a_method_that_no_path_knows_is_refused_with_those_it_does(live: Live) -> None:
    response = live.http.request("PUT", "/v1/chat/completions", json={})
    assert response.status_code == 405
    assert "POST" in response.headers["Allow"]
    assert "PUT" in error_of(response)["message"]
