"""The real application on a real socket, uvicorn in a thread, over a pool that several of them may share."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from localspec.runtime.engine import Engine
from localspec.runtime.pool import Pool
from localspec.server.chat.service import Service
from localspec.server.front import Processes
from localspec.server.http import listen
from localspec.server.http.app import create_app
from localspec.server.http.settings import ServerSettings

COPY = "Repeat this text exactly: Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo."
"""What the bundled pair answers with COPIED. Rounding differs between CPUs, so what tests compare word for word may not
depend on it: no token of these answers is nearly another (`test_leads`)."""
COPIED = "Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo."
RECORD = (
    "event - cabin temple | city - Nairobi | date - 2020-02-17 | guests - 485 | host - Kate Baker\n\n"
    "Read the text and write date, host as JSON."
)
"""What it answers with RECORDED; the same holds for it."""
RECORDED = {"date": "2020-02-17", "host": "Kate Baker"}


@dataclass
class Live:
    """A server that runs."""

    port: int
    service: Service
    server: listen.EndpointServer
    http: httpx.Client = field(repr=False)

    @property
    def url(self) -> str:
        """Without /v1."""
        return f"http://127.0.0.1:{self.port}"

    def chat(self, content: str = COPY, **fields: Any) -> httpx.Response:
        """A chat request with one message."""
        return self.http.post("/v1/chat/completions", json={"messages": [user(content)]} | fields)

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        """A completion request."""
        return self.http.post("/v1/completions", json={"prompt": prompt} | fields)

    def stream(self, path: str, **fields: Any) -> list[Any]:
        """Data of all events of a streamed request; "[DONE]" as it is."""
        response = self.http.post(path, json=fields | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events(response.text)


def engine_of(pool: Pool) -> Engine:
    """The engine of this process that answers under the default's name."""
    engine = pool.loaded()[pool.default]
    assert isinstance(engine, Engine)
    return engine


def user(content: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": content}


def events(text: str) -> list[Any]:
    """Data of server-sent events, checked for their form."""
    assert text.endswith("\n\n")
    found: list[Any] = []
    for event in text[:-2].split("\n\n"):
        if event.startswith(":"):
            continue
        assert event.startswith("data: ")
        assert "\n" not in event
        data = event.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response in OpenAI's shape."""
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"].endswith((".", "?", "`."))
    return error


@contextmanager
def running(
    pool: Pool,
    settings: ServerSettings | None = None,
    key: str = "",
    listening: socket.socket | None = None,
    processes: Processes | None = None,
) -> Iterator[Live]:
    """A server over `pool`; ended as a signal would end it."""
    settings = settings or ServerSettings(drain_seconds=0.0)
    listening = listening or listen.bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with (
        started(pool, settings, listening, processes) as (service, server, failures),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client,
    ):
        while client.get("/health").status_code == 503:
            assert not failures, repr(failures[0])
            time.sleep(0.01)
        yield Live(port, service, server, client)


@contextmanager
def started(
    pool: Pool, settings: ServerSettings, listening: socket.socket, processes: Processes | None = None
) -> Iterator[tuple[Service, listen.EndpointServer, list[Exception]]]:
    """The server alone, which may still load its model, and what went wrong with that."""
    failures: list[Exception] = []

    async def load(service: Service) -> None:
        try:
            await service.load(pool.default)
        except Exception as error:  # noqa: BLE001 - the test fails with it, instead of waiting for ever
            failures.append(error)

    app = create_app(pool, settings, on_start=load, processes=processes)
    server = listen.EndpointServer(app, settings)
    thread = threading.Thread(target=server.run, args=([listening],), name="test-server")
    thread.start()
    try:
        yield app.state.service, server, failures
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
        assert not thread.is_alive()
