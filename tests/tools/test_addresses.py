"""Servers at an address (streamable HTTP): what they are asked with, and the one sentence of a fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from localspec.tools.servers import Server
from tests.tools.conftest import Connect
from tests.tools.test_connections import fault


class Handler(BaseHTTPRequestHandler):
    """Answers a request as the path says: `/good`, or a fault."""

    heard: list[str | None]
    ended: list[str | None]
    may_end: threading.Event

    def log_message(self, *_: Any) -> None: ...

    def do_DELETE(self) -> None:
        if self.path != "/good":
            type(self).may_end.wait(60)
        type(self).ended.append(self.headers.get("Mcp-Session-Id"))
        self.reply(200)

    def do_GET(self) -> None:
        self.reply(405)

    def do_POST(self) -> None:
        type(self).heard.append(self.headers.get("Authorization"))
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, number = message["method"], message.get("id")
        if self.path == "/401":
            return self.reply(401, b"no")
        if self.path == "/expires" and method == "tools/call":
            return self.reply(401, b"no")
        if self.path == "/page":
            return self.reply(200, b"<html>Hello</html>", "text/html")
        if self.path == "/nonsense":
            return self.reply(200, b'{"hello": 1}')
        if number is None:
            return self.reply(202)
        result: dict[str, Any] = {"content": [{"type": "text", "text": "from afar"}]}
        if method == "initialize":
            info = {"name": "afar", "version": "2"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            result = {"tools": [{"name": "far", "inputSchema": {"type": "object"}}]}
        elif self.path == "/floods":
            return self.flood()
        return self.reply(200, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode())

    def flood(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with suppress(OSError):
            for _ in range(1000):
                self.wfile.write(b"x" * 1_000_000)

    def reply(self, status: int, data: bytes = b"", kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.path in ("/good", "/stays"):
            self.send_header("Mcp-Session-Id", "session-7")
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def address() -> Iterator[str]:
    Handler.heard, Handler.ended, Handler.may_end = [], [], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        Handler.may_end.set()
        http.shutdown()
        thread.join()


def test_a_server_at_an_address(connect: Connect, address: str) -> None:
    connections = connect(Server("afar", url=f"{address}/good", headers={"Authorization": "Bearer key-of-mine"}))
    assert [tool["name"] for tool in connections.start("afar").tools] == ["far"]
    assert connections.call("afar", "far", {}).text == "from afar"
    assert set(Handler.heard) == {"Bearer key-of-mine"}
    assert not Handler.ended
    connections.close()
    assert Handler.ended == ["session-7"]


def test_an_address_that_does_not_end_its_session_is_not_waited_for(connect: Connect, address: str) -> None:
    connections = connect(Server("afar", url=f"{address}/stays"))
    connections.start("afar")
    connections.close()
    assert not Handler.ended


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("401", "The server x refuses (HTTP 401 Unauthorized)."),
        ("page", "The server x does not answer as an MCP server does ("),
        ("nonsense", "The server x does not answer as an MCP server does ("),
    ],
)
def test_a_fault_at_an_address_costs_a_sentence(connect: Connect, address: str, path: str, said: str) -> None:
    assert fault(lambda: connect(Server("x", url=f"{address}/{path}")).start("x")).startswith(said)


def test_a_key_that_holds_no_more_is_told_to_the_model(connect: Connect, address: str) -> None:
    called = connect(Server("x", url=f"{address}/expires")).call("x", "far", {})
    assert (called.text, called.failed) == ("Server returned an error response (HTTP 401 Unauthorized)", True)


def test_too_much_from_an_address_costs_a_sentence(connect: Connect, address: str) -> None:
    connections = connect(Server("x", url=f"{address}/floods"))
    connections.start("x")
    assert fault(lambda: connections.call("x", "far", {})) == "The server x sent more than 16 MB at once."
