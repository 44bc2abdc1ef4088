"""A small HTTP server that answers GET as a test says, and keeps what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _SixServer(ThreadingHTTPServer):
    address_family = socket.AF_INET6


@dataclass
class Odd:
    """Answers by path; any other path is 404."""

    answers: dict[str, Any] = field(default_factory=dict)
    """{path: JSON value, or bytes as they are}."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every answer."""
    slow: bool = False
    """Answers only once the test is over."""
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """(method, path, headers in lower case)."""
    sent: int = 0
    """Bytes of the last body that were written."""
    port: int = 0
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(odd: Odd, host: str = "127.0.0.1", port: int = 0) -> Iterator[Odd]:
    """The server, while the block runs; `host` may be ::1."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            odd.asked.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
            if odd.slow:
                odd.over.wait(60)
            found = odd.answers.get(self.path)
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            try:
                self.send_response(404 if found is None else odd.status)
                for name, value in odd.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                odd.sent = 0
                for start in range(0, len(body), 65536):
                    self.wfile.write(body[start : start + 65536])
                    odd.sent = min(len(body), start + 65536)
            except OSError:
                pass

        do_POST = do_GET  # noqa: N815 - http.server's name

    kind = _SixServer if ":" in host else ThreadingHTTPServer
    server = kind((host, port), Handler)
    server.daemon_threads = True
    odd.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield odd
    finally:
        odd.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
