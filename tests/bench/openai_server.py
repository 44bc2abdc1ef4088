"""A small OpenAI-style server for the endpoint contender: streams fixed words, and misbehaves when told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """What the server does; changed by tests while it runs."""

    words: list[str] = field(default_factory=lambda: ["one", " two", " three"])
    finish: str = "length"
    tokens: int | None = 3
    """In `usage`; None = it sends none."""
    timings: dict[str, Any] | None = None
    paths: tuple[str, ...] = ("/v1/completions", "/v1/chat/completions")
    plain_fields: bool = False
    """Refuse what OpenAI does not know, with 400."""
    key: str = ""
    break_after: int | None = None
    """Close the connection behind so many words."""
    error_after: int | None = None
    """Send an error event behind so many words."""
    pause: float = 0.0
    """Seconds before each word."""
    models: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of streamed requests."""
    connections: list[int] = field(default_factory=list)
    """The asker's port, a request."""


_EXTENSIONS = {"top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "ignore_eos", "cache_prompt"}


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour
    protocol_version = "HTTP/1.1"  # connections stay open

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.behaviour.connections.append(self.client_address[1])
        if self.path == "/v1/models" and self.behaviour.models and self._allowed():
            self._json(200, {"data": [{"id": "served-model"}]})
        elif self._allowed():
            self._json(404, {"error": {"message": "no such page"}})
        else:
            self._json(401, {"error": {"message": "Invalid API key"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behaviour = self.behaviour
        behaviour.connections.append(self.client_address[1])
        if not self._allowed():
            self._json(401, {"error": {"message": "Invalid API key"}})
        elif self.path not in behaviour.paths:
            self._json(404, {"error": {"message": "no such page"}})
        elif behaviour.plain_fields and _EXTENSIONS & body.keys():
            self._json(400, {"error": {"message": "unknown field top_k"}})
        elif not body.get("stream"):
            self._json(200, {"choices": [{"text": "x", "finish_reason": "length"}]})
        else:
            behaviour.requests.append(body)
            self._stream()

    def _allowed(self) -> bool:
        return not self.behaviour.key or self.headers.get("Authorization") == f"Bearer {self.behaviour.key}"

    def _stream(self) -> None:
        behaviour, chat = self.behaviour, "chat" in self.path
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b": ping\n\n")
        for count, word in enumerate(behaviour.words):
            if behaviour.break_after == count:
                return
            if behaviour.error_after == count:
                self._event({"error": {"code": 500, "message": "out of memory"}})
                return
            time.sleep(behaviour.pause)
            choice = {"delta": {"content": word}} if chat else {"text": word}
            self._event({"choices": [{**choice, "finish_reason": None}]})
        last: dict[str, Any] = {"choices": [{"text": "", "delta": {}, "finish_reason": behaviour.finish}]}
        if behaviour.timings is not None:
            last["timings"] = behaviour.timings
        self._event(last)
        if behaviour.tokens is not None:
            self._event({"choices": [], "usage": {"completion_tokens": behaviour.tokens, "prompt_tokens": 7}})
        with suppress(ConnectionError):
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: Any) -> None:
        with suppress(ConnectionError):  # the asker has lost patience
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
            self.wfile.flush()

    def _json(self, status: int, data: Any) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def openai_server(behaviour: Behaviour) -> Iterator[str]:
    """Serves on a free port of this machine; yields the URL."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
