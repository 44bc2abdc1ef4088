"""Whether a newer localspec is out, asked of a server of ours in PyPI's place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from localspec.checks.doctor import ADDRESS, examine_updates


class Answer(BaseHTTPRequestHandler):
    """Says that 0.10.0 is the newest; /gone is not there, /odd is no JSON of PyPI's."""

    def do_GET(self) -> None:
        found = {"/pypi": {"info": {"version": "0.10.0"}}, "/odd": ["x"]}.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answer) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_a_newer_release_is_named_with_the_command(server: str) -> None:
    found = examine_updates(f"{server}/pypi", "0.9.9")
    assert found.value == "0.10.0 is out, 0.9.9 is installed"
    assert found.command == "pip install --upgrade localspec"


@pytest.mark.parametrize("installed", ["0.10.0", "0.10.1.dev0", "1.0"])
def test_the_newest_or_a_newer_one_is_installed(server: str, installed: str) -> None:
    found = examine_updates(f"{server}/pypi", installed)
    assert (found.value, found.advice) == (f"none: {installed} is installed, and the newest release is 0.10.0", "")


@pytest.mark.parametrize(
    ("where", "said"), [("/gone", "not known: PyPI answered 404"), ("/odd", "not known: TypeError")]
)
def test_an_odd_answer_is_a_sentence(server: str, where: str, said: str) -> None:
    assert examine_updates(f"{server}{where}").value.startswith(said)


def test_without_a_server_it_is_not_known() -> None:
    found = examine_updates("http://127.0.0.1:9/pypi")
    assert found.value.startswith("not known: ")
    assert found.advice == ""


def test_pypi_is_asked_over_https() -> None:
    assert ADDRESS.startswith("https://")
