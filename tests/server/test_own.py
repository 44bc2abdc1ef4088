"""What is only for the program itself is not there for anybody else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from localspec.errors import UsageError
from localspec.runner.own_socket import HEADER
from localspec.runtime.pool import Pool
from localspec.server.http.app import create_app
from localspec.server.http.settings import ServerSettings
from localspec.server.own.serve import Own
from tests.server.live import Live, error_of

SECRET = "0e8592d4001cd477655a1e90e89aec45"
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {(await request.body()).decode()}")


async def _refuse(request: Request) -> Response:
    raise UsageError("That cannot be.", "Try another.")


@pytest.fixture
async def client(pool: Pool) -> AsyncIterator[httpx.AsyncClient]:
    """The application with two routes of its own."""
    routes = {("POST", "/localspec/hello"): _hello, ("GET", "/localspec/refuse"): _refuse}

    async def make() -> ASGIApp:
        return create_app(pool, ServerSettings(allowed_hosts=("*",)))

    app = Own(SECRET, routes, make)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://own") as made:
        yield made


async def test_the_program_itself_is_answered(client: httpx.AsyncClient) -> None:
    own = {HEADER: SECRET}
    assert (await client.post("/localspec/hello", content="you", headers=own)).text == "hello you"
    refused = await client.get("/localspec/refuse", headers=own)
    told = {"kind": "UsageError", "message": "That cannot be.", "hint": "Try another."}
    assert (refused.status_code, refused.json()) == (400, {"error": told})
    assert (await client.get("/v1/models", headers=own)).status_code == 200


@pytest.mark.parametrize("given", [None, "", SECRET[:-1], SECRET + "x", "ü"])
async def test_without_the_secret_there_is_no_such_path(client: httpx.AsyncClient, given: str | None) -> None:
    headers = [] if given is None else [(HEADER.encode(), given.encode("latin-1"))]
    found = await client.request("POST", "/localspec/hello", json={}, headers=headers)
    assert found.status_code == 404
    assert error_of(found)["message"] == "There is no path '/localspec/hello' here."
    assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/localspec/life", "/localspec/end", "/localspec/forget", "/localspec/cancel"])
def test_a_server_on_a_port_has_none_of_them(live: Live, path: str) -> None:
    for method in ("GET", "POST"):
        assert live.http.request(method, path, headers={HEADER: "x"}, json={}).status_code == 404
    assert path not in live.http.get("/openapi.json").json()["paths"]
