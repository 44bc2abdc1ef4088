"""A model stays in memory until the last answer has been spelled and counted, and no longer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI

from localspec.errors import NoRoomError
from localspec.machine import Place
from localspec.runtime.pool import Pool
from localspec.server.chat.service import Service
from localspec.server.http.app import create_app
from tests.server.held import eventually
from tests.server.live import Live, events, user

THOUGHT = 'root ::= "<think>one two three</think>done"'


class Reader:
    """A client that reads nothing more, once an answer has begun to come, until it is told to."""

    def __init__(self, app: FastAPI, path: str, **body: Any) -> None:
        self._app, self._path, self._body = app, path, json.dumps(body).encode()
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.read = b""
        self._asked = False

    async def run(self) -> None:
        """The whole request."""
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": self._path, "headers": headers, "query_string": b""}
        scope |= {"http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._asked:
            await asyncio.Event().wait()  # it stays
        self._asked = True
        return {"type": "http.request", "body": self._body}

    async def _send(self, message: Any) -> None:
        self.read += message.get("body", b"")
        if message["type"] == "http.response.body":
            self.begun.set()
            await self.go.wait()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_model_is_unloaded_for_another_while_a_reader_is_behind(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All has been generated, but not spelled and counted; there is room for one model, and another one is wanted."""
    pool: Pool

    def room() -> list[Place]:
        return [Place("CPU", "cpu", 1 << 20 if pool.loaded() else 64 << 30, 64 << 30)]

    pool = Pool("tiny", settings={"slots": 1, "context": 256, "exact": "off"}, room=room)
    lease = pool.lease("tiny")
    model = lease.engine.loaded.model
    monkeypatch.setattr(model, "chat_template", f"{model.chat_template}{{# <think></think> #}}")
    lease.release()
    prompt: dict[str, Any] = {"messages": [user("Hi")], "logprobs": True, "stream_options": {"include_usage": True}}
    if path == "/v1/completions":
        prompt = {"prompt": "Hi", "logprobs": 3}

    async def scene() -> list[Any]:
        app = create_app(pool)
        service: Service = app.state.service
        reader = Reader(app, path, **prompt, stream=True, grammar=THOUGHT)
        request = asyncio.create_task(reader.run())
        await reader.begun.wait()
        while service.live["tiny"]:
            await asyncio.sleep(0.001)
        with pytest.raises(NoRoomError):
            await asyncio.to_thread(pool.lease, "tiny-target")
        reader.go.set()
        await request
        return events(reader.read.decode())

    *_, last, done = asyncio.run(scene())
    assert done == "[DONE]"
    if "usage" in last:
        assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    other = pool.lease("tiny-target")  # now there is nobody left
    assert list(pool.loaded()) == ["tiny-target"]
    other.release()
    pool.close()


def test_whatever_is_asked_for_nobody_keeps_the_model(live: Live) -> None:
    """Whole, streamed, refused, and only read."""
    chat: dict[str, Any] = {"messages": [user("Hi")], "max_tokens": 3}
    sent: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"messages": []}),
        ("/v1/chat/completions", chat | {"n": 10_000}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 3}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("/v1/completions", {"prompt": "Hi", "logit_bias": {"x": "y"}}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 3}),
        ("/v1/messages", chat),
        ("/v1/messages/count_tokens", {"messages": chat["messages"]}),
        ("/v1/embeddings", {"input": ["Hi", "you"]}),
        ("/v1/embeddings", {"input": ""}),
        ("/tokenize", {"content": "Hi"}),
        ("/apply-template", chat),
    ]
    codes = [
        live.http.post(path, json=body | more).status_code
        for path, body in sent
        for more in ({}, {"stream": True})
        if not more or path.endswith(("completions", "responses", "messages"))
    ]
    assert set(codes) == {200, 400}
    assert eventually(lambda: not live.service.pool._held["tiny"].users)
