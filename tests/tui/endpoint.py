"""An OpenAI-style endpoint that says what a test wants, over a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint:
    """What it says, and what it was asked."""

    def __init__(self) -> None:
        self.deltas: list[dict[str, Any]] = [{"content": "Hello"}, {"content": " there."}]
        self.pause = 0.0
        self.status = 200
        self.body = ""
        """What comes instead of a stream; with `status`."""
        self.finish = "stop"
        self.models: Any = ["served-model"]
        """Names that it lists."""
        self.hold = threading.Event()
        """An answer begins once this is set."""
        self.hold.set()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.broken = threading.Event()
        """Set when a client went away in the middle."""
        self.url = ""


@contextmanager
def served(endpoint: Endpoint) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._whole(200, json.dumps({"data": [{"id": name} for name in endpoint.models]}))

        def do_POST(self) -> None:
            endpoint.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            endpoint.headers.append(dict(self.headers))
            endpoint.hold.wait(60)
            if endpoint.body:
                self._whole(endpoint.status, endpoint.body)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                for delta in endpoint.deltas:
                    self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
                    time.sleep(endpoint.pause)
                self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": endpoint.finish}]})
                self._event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                endpoint.broken.set()
            self.close_connection = True

        def _event(self, data: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
            self.wfile.flush()

        def _whole(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
