"""Who may come in: keys, Host, Origin, and what is never written anywhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from localspec.errors import UsageError
from localspec.runtime.pool import Pool
from localspec.server.http import output
from localspec.server.http.app import host_name
from localspec.server.http.settings import ServerSettings
from tests.server.live import Live, error_of, running, user

KEY, OTHER = "sk-this-is-the-secret-key", "another key, with ünusual characters"
ORIGIN = "https://chat.example"


@pytest.fixture(scope="module")
def locked(pool: Pool) -> Iterator[Live]:
    """A server with two keys and one web origin."""
    settings = ServerSettings(api_keys=(KEY, OTHER), cors_origins=(ORIGIN,), drain_seconds=0.0)
    with running(pool, settings) as server:
        yield server


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_is_public(locked: Live, path: str) -> None:
    assert locked.http.get(path).json() == {"status": "ok"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer invalid"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"X-Api-Key": "invalid"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
    ],
)
def test_without_the_key_nothing_is_told(locked: Live, method: str, path: str, headers: dict[str, str]) -> None:
    response = locked.http.request(method, path, headers=headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    error = error_of(response)
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert "invalid" not in error["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"X-Api-Key": KEY},
        {"X-Api-Key": OTHER.encode().decode("latin-1")},
    ],
)
def test_any_of_the_keys_opens(locked: Live, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    response = locked.http.post("/v1/completions", json={"prompt": "One", "max_tokens": 1}, headers=raw)
    assert response.status_code == 200


def test_openais_client_with_the_key(locked: Live) -> None:
    messages: Any = [user("What is the meaning of life?")]
    with openai.OpenAI(api_key=KEY, base_url=f"{locked.url}/v1", max_retries=0) as client:
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
    assert len(answer.choices) == 1
    wrong = openai.OpenAI(api_key="wrong", base_url=f"{locked.url}/v1", max_retries=0)
    with wrong as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_keys_and_prompts_are_not_logged(locked: Live, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(output.LOG.name)
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG, logger=output.LOG.name)
    try:
        headers = {"Authorization": f"Bearer {KEY}"}
        fields = {"prompt": "my secret prompt", "max_tokens": 1}
        locked.http.post(f"/v1/completions?key={KEY}", json=fields, headers=headers)
        locked.http.get("/v1/models", headers={"X-Api-Key": "not the key"})
    finally:
        logger.removeHandler(caplog.handler)
    assert "POST /v1/completions 200" in caplog.text
    assert "GET /v1/models 401" in caplog.text
    for secret in (KEY, OTHER, "secret prompt", "not the key"):
        assert secret not in caplog.text
    assert KEY not in repr(locked.service.settings)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:{port}", "127.0.0.1", "[::1]:8080", "10.1.2.3:80", "app.localhost", "localhost."]
)
def test_own_names_are_let_in(live: Live, host: str) -> None:
    response = live.http.get("/v1/models", headers={"Host": host.format(port=live.port)})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io", "a b"]
)
def test_other_names_are_not(live: Live, host: str) -> None:
    response = live.http.get("/v1/models", headers={"Host": host})
    assert response.status_code == 403
    assert error_of(response)["type"] == "permission_error"


def test_a_host_can_be_allowed(pool: Pool) -> None:
    with running(pool, ServerSettings(allowed_hosts=("models.example",), drain_seconds=0.0)) as server:
        assert server.http.get("/v1/models", headers={"Host": "models.example:80"}).status_code == 200
        assert server.http.get("/v1/models", headers={"Host": "other.example"}).status_code == 403


def test_no_page_of_another_origin_is_let_in(live: Live) -> None:
    for origin in (ORIGIN, "null", "http://localhost.evil.example", "http://127.0.0.1:1"):
        response = live.http.post("/v1/completions", json={"prompt": "x"}, headers={"Origin": origin})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    assert live.http.options("/v1/completions", headers=preflight).status_code == 403
    own = {"Origin": live.url}
    assert live.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=own).status_code == 200


def test_listed_origins_are_let_in_with_the_key(locked: Live) -> None:
    preflight = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "Authorization",
    }
    response = locked.http.options("/v1/completions", headers=preflight)
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "authorization" in response.headers["Access-Control-Allow-Headers"].lower()
    assert "access-control-allow-credentials" not in response.headers
    headers = {"Origin": ORIGIN, "Authorization": f"Bearer {KEY}"}
    response = locked.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
    refused = locked.http.post("/v1/completions", json={"prompt": "x"}, headers={"Origin": ORIGIN})
    assert refused.status_code == 401
    assert refused.headers["Access-Control-Allow-Origin"] == ORIGIN  # so that the page can read why
    other = locked.http.options("/v1/completions", headers=preflight | {"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_what_a_page_may_send_unasked_is_refused(live: Live, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    response = live.http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "myhost", "128.0.0.1"])
def test_the_network_needs_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="no API key"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, api_keys=(KEY,)).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert ServerSettings(host=host).api_keys == ()


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("A.b:80", "a.b"),
        ("[::1]:80", "::1"),
        ("::1", ""),
        ("x.", "x"),
        ("", ""),
        (" h ", "h"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_host_header_without_its_port(header: str, name: str) -> None:
    assert host_name(header) == name


def test_pages_of_this_machine_are_let_in_together(pool: Pool) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}
    with running(pool, ServerSettings(cors_origins=("localhost",), drain_seconds=0.0)) as live:
        for origin in ("http://localhost", "https://localhost:3000", "http://127.0.0.1:5173", "http://[::1]:1"):
            asked = live.http.options("/v1/completions", headers=asks | {"Origin": origin})
            assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, origin)
            assert live.http.get("/v1/models", headers={"Origin": origin}).status_code == 200
        for origin in ("http://notlocalhost", "http://localhost.evil.com", "http://evil.com/localhost", "null"):
            assert live.http.options("/v1/completions", headers=asks | {"Origin": origin}).status_code in (400, 403)
            assert live.http.get("/v1/models", headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(UsageError, match="origin"):
        ServerSettings(cors_origins=(origin,))
