"""Servers that people use, over the same code: `mcp-server-time`, `-git`, `-fetch`, `server-filesystem`, `-everything`.

LOCALSPEC_MCP_SERVERS names a folder with `venv/` and `node_modules/` that have them; without it they are installed for
the run, and the trials are skipped where the indexes are not reached.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from localspec.errors import LocalspecError, UsageError
from localspec.tools.connections import Connections
from localspec.tools.servers import Server
from localspec.tools.toolbox import Toolbox

pytestmark = pytest.mark.trial

PYTHON = ("mcp-server-time", "mcp-server-git", "mcp-server-fetch")
NODE = ("@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-everything")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if named := os.environ.get("LOCALSPEC_MCP_SERVERS"):
        return Path(named)
    made, npm = tmp_path_factory.mktemp("servers"), shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm")
    steps: list[list[str]] = [
        [sys.executable, "-m", "venv", str(made / "venv")],
        [str(made / "venv" / "bin" / "pip"), "install", "-q", *PYTHON],
        [npm, "install", "--silent", "--prefix", str(made), *NODE],
    ]
    for step in steps:
        try:
            subprocess.run(step, check=True, capture_output=True, timeout=600)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"the servers cannot be installed: {error}")
    return made


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repository")
    (made / "poem.txt").write_text("Roses are red.\n" * 60)
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost"]
    for step in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "A poem"]):
        subprocess.run(["git", *step], cwd=made, check=True)
    return made


@pytest.fixture(scope="module")
def connections(folder: Path, repository: Path) -> Iterator[Connections]:
    venv, node = folder / "venv" / "bin", folder / "node_modules" / ".bin"
    made = Connections(
        [
            Server("time", str(venv / "mcp-server-time"), ("--local-timezone", "UTC")),
            Server("git", str(venv / "mcp-server-git")),
            Server("fetch", str(venv / "mcp-server-fetch"), ("--ignore-robots-txt", "--allow-private-ips")),
            Server("files", str(node / "mcp-server-filesystem"), (str(repository),)),
            Server("everything", str(node / "mcp-server-everything")),
        ]
    )
    yield made
    made.close()


def test_all_are_listed_and_their_tools_can_be_offered(connections: Connections) -> None:
    found = connections.offered()
    assert connections.notices == []
    assert {"get_current_time", "git_log", "fetch", "read_text_file", "echo"} <= set(found)


def test_the_time(connections: Connections) -> None:
    found = connections.call("time", "get_current_time", {"timezone": "Asia/Tokyo"})
    assert not found.failed
    assert "+09:00" in found.text


def test_a_repository(connections: Connections, repository: Path) -> None:
    assert "A poem" in connections.call("git", "git_log", {"repo_path": str(repository)}).text


def test_a_file_and_one_outside(connections: Connections, repository: Path) -> None:
    found = connections.call("files", "read_text_file", {"path": str(repository / "poem.txt")})
    assert (found.text, found.failed) == ("Roses are red.\n" * 60, False)
    assert connections.call("files", "read_text_file", {"path": "/etc/hostname"}).failed


def test_everything(connections: Connections) -> None:
    assert connections.call("everything", "echo", {"message": "hi"}).text == "Echo: hi"
    assert "[image, image/png, " in connections.call("everything", "get-tiny-image", {}).text
    assert connections.call("everything", "get-sum", {"a": 1, "b": "x"}).failed


def test_prompts_and_resources(connections: Connections) -> None:
    toolbox = Toolbox(connections)
    assert {"everything:simple-prompt", "everything:args-prompt", "fetch:fetch"} <= {
        one for one, _ in toolbox.prompts()
    }
    assert toolbox.notices() == []
    written = toolbox.prompt(lambda: False, "everything:args-prompt city=San Francisco state=CA")
    assert written == "What's weather in San Francisco, CA?"
    with pytest.raises(UsageError, match=r"needs city: /prompt everything:args-prompt city=\.\.\. \[state=\.\.\.\]"):
        toolbox.prompt(lambda: False, "everything:args-prompt")
    name = next(name for name, _ in toolbox.resources() if name.endswith("/architecture.md"))
    assert toolbox.read(lambda: False, name).startswith("# Everything Server")
    with pytest.raises(LocalspecError, match=r"The server everything gives no text: .*not found"):
        toolbox.read(lambda: False, "everything:demo://nope")


class Page(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body><h1>A page</h1><p>of this machine</p></body></html>")


def test_a_page_of_this_machine(connections: Connections) -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        found = connections.call("fetch", "fetch", {"url": f"http://127.0.0.1:{http.server_port}/", "raw": True})
        http.shutdown()
        thread.join()
    assert not found.failed
    assert "of this machine" in found.text


def test_a_server_over_http(folder: Path) -> None:
    """server-everything with its streamable HTTP."""
    import socket
    import time

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = folder / "node_modules" / ".bin" / "mcp-server-everything"
    server = subprocess.Popen(
        [program, "streamableHttp"],
        env=os.environ | {"PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    connections = Connections([Server("far", url=f"http://127.0.0.1:{port}/mcp")])
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        assert "echo" in [tool["name"] for tool in connections.start("far").tools]
        assert connections.call("far", "echo", {"message": "hi"}).text == "Echo: hi"
    finally:
        connections.close()
        server.terminate()
        server.wait(10)
