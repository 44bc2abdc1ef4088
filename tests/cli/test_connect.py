"""`localspec connect`: the command of a client for a running server, and the client started with it."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from localspec.cli.commands.serve import CLIENTS, KEY_VARIABLE, warning, without_keys
from tests.cli.conftest import Command

KEY = "sesame-17"
OTHERS = {
    "ANTHROPIC_API_KEY": "theirs-1",
    "OPENAI_API_KEY": "theirs-2",
    "GROQ_API_KEY": "theirs-3",
    "CLAUDE_CODE_OAUTH_TOKEN": "theirs-4",
    "OPENAI_BASE_URL": "https://elsewhere.example/v1",
}
SHELL_OWN = ("_", "PWD", "SHLVL", "OLDPWD", KEY_VARIABLE)
"""Variables that a shell sets, and the one that the printed command reads."""
_CLIENT = """#!{python}
import json, os, sys
with open(os.environ["SEEN"], "w") as file:
    json.dump([sys.argv, dict(os.environ)], file)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of a real `localspec serve` that wants KEY."""
    words = [sys.executable, "-m", "localspec", "serve", "--port", "0", "--json", "--context", "256"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, KEY_VARIABLE: KEY}
    ) as server:
        assert server.stdout is not None
        try:
            yield str(json.loads(server.stdout.readline())["url"]).removesuffix("/v1")
        finally:
            server.terminate()


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of every client's name on PATH, which writes down how it was started; where it writes that."""
    folder, seen = tmp_path / "bin", tmp_path / "seen.json"
    folder.mkdir()
    for name in CLIENTS:
        (folder / name).write_text(_CLIENT.format(python=sys.executable), encoding="utf-8")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable, value in {**OTHERS, KEY_VARIABLE: KEY}.items():
        monkeypatch.setenv(variable, value)
    return seen


def started(seen: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the client that ran."""
    words, environment = json.loads(seen.read_text(encoding="utf-8"))
    return words, environment


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_started_for_this_server(command: Command, clients: Path, served: str, name: str) -> None:
    done = command("connect", name, "--url", served, "--run", "--", "--more", "a b; $HOME")
    assert done.code == 7, "the client's own exit code"
    words, environment = started(clients)
    assert Path(words[0]).name == name
    assert words[-2:] == ["--more", "a b; $HOME"], "no shell reads them"
    assert KEY not in " ".join(words)
    assert KEY in environment.values()
    assert not set(OTHERS.values()) & set(environment.values())
    told = " ".join([*words, *environment.values()])
    assert served in told
    assert "tiny" in told
    assert not (clients.parent / "home").exists(), "nothing was written"
    assert "context holds 256 tokens, and coding agents need 32,768 or more" in done.err


@pytest.mark.parametrize("name", CLIENTS)
def test_the_printed_command_does_the_same(command: Command, clients: Path, served: str, name: str) -> None:
    printed = command("connect", name, "--url", f"{served}/v1/", "--", "a b; $HOME")
    assert printed.code == 0
    assert KEY not in printed.out
    assert not clients.exists(), "it is printed and not started"
    assert len(printed.out.splitlines()) == 1
    subprocess.run(["sh", "-c", printed.out], check=False, env={**os.environ})  # libraries set more in C
    by_hand, theirs = started(clients)
    command("connect", name, "--url", served, "--run", "--", "a b; $HOME")
    by_us, ours = started(clients)
    assert by_hand == by_us
    ours, theirs = ({key: value for key, value in one.items() if key not in SHELL_OWN} for one in (ours, theirs))
    assert ours == theirs


def test_settings_of_a_client_are_sound(command: Command, clients: Path, served: str) -> None:
    command("connect", "opencode", "--url", served, "--run")
    settings = json.loads(started(clients)[1]["OPENCODE_CONFIG_CONTENT"])
    model = settings["model"].removeprefix("localspec/")
    options = settings["provider"]["localspec"]["options"]
    assert options["baseURL"] == f"{served}/v1"
    assert {options[name] for name in ("timeout", "headerTimeout", "chunkTimeout")} == {3_600_000}
    assert settings["provider"]["localspec"]["models"][model]["limit"]["context"] == 256
    assert settings["small_model"] == settings["model"]
    command("connect", "goose", "--url", served, "--run")
    assert started(clients)[1]["GOOSE_CONTEXT_LIMIT"] == "256"
    command("connect", "qwen", "--url", served, "--run")
    assert started(clients)[1]["QWEN_CODE_MAX_OUTPUT_TOKENS"] == "64"
    command("connect", "aider", "--url", served, "--run")
    assert started(clients)[0][-2:] == ["--timeout", "3600"]
    command("connect", "codex", "--url", served, "--run", "--model", "tiny-target")
    words = started(clients)[0]
    assert f'model_providers.localspec.base_url="{served}/v1"' in words
    assert "model_providers.localspec.stream_idle_timeout_ms=3600000" in words
    assert words[-2:] == ["-m", "tiny-target"]
    command("connect", "claude", "--url", served, "--run")
    environment = started(clients)[1]
    assert environment["ANTHROPIC_BASE_URL"] == served
    assert environment["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert "ANTHROPIC_API_KEY" not in environment
    assert environment["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert environment["API_TIMEOUT_MS"] == environment["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] == "3600000"


class Reader(BaseHTTPRequestHandler):
    """A server that reads so many tokens a second, and the first ones much slower."""

    rate: Any = 100.0
    asked = 0

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        assert json.loads(self.rfile.read(size))["max_tokens"] == 1
        Reader.asked += 1
        body = json.dumps({"timings": {"prompt_per_second": 1.0 if Reader.asked == 1 else self.rate}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (100.0, "at 100 tokens/s this machine reads them in about 3 minutes"),
        (500, "about 38 s"),
        (5000.0, ""),
        (None, ""),
    ],
)
def test_a_long_first_prompt_is_told_before(monkeypatch: pytest.MonkeyPatch, rate: Any, said: str) -> None:
    monkeypatch.setattr(Reader, "rate", rate)
    monkeypatch.setattr(Reader, "asked", 0)
    server = HTTPServer(("127.0.0.1", 0), Reader)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        told = warning(f"http://127.0.0.1:{server.server_port}", "m", "", "claude", 18_846)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert said in told
    assert bool(told) == bool(said)
    assert warning("http://127.0.0.1:9", "m", "", "claude", 18_846) == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("claude", "--url", "http://127.0.0.1:9"), 1, "No server answers at http://127.0.0.1:9"),
        (("clade",), 2, "Did you mean claude?"),
        (("claude", "--url", "127.0.0.1:8080"), 2, "must look like http://127.0.0.1:8080"),
        (("claude", "--url", "http://127.0.0.1:x"), 2, "must look like"),
        (("claude", "--url", "http://me:secret@127.0.0.1:1"), 2, "must look like"),
        (("claude", "--api-key-file", "nosuch"), 2, "Cannot read nosuch"),
    ],
)
@pytest.mark.parametrize("run", [(), ("--run",)])
def test_what_cannot_be_is_one_sentence(
    command: Command, clients: Path, words: tuple[str, ...], code: int, said: str, run: tuple[str, ...]
) -> None:
    done = command("connect", *words, *run)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not clients.exists(), "no client is started without a server"


def test_a_server_with_another_key_or_model_is_told_apart(
    command: Command, clients: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = command("connect", "claude", "--url", served, "--model", "nosuch", "--run")
    assert (refused.code, "has no model 'nosuch'. It has: tiny" in refused.err) == (2, True)
    monkeypatch.setenv(KEY_VARIABLE, "wrong")
    refused = command("connect", "claude", "--url", served, "--run")
    assert (refused.code, "asks for an API key" in refused.err) == (2, True)
    assert not clients.exists()


def test_a_client_that_is_not_installed_is_said(
    command: Command, clients: Path, served: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("connect", "goose", "--url", served, "--run")
    assert (done.code, done.err.splitlines()[-1]) == (1, "localspec: goose is not installed, or not on PATH.")


class _Strange(BaseHTTPRequestHandler):
    """A server whose answer is `server.answer`."""

    def do_GET(self) -> None:
        body = json.dumps(self.server.answer).encode()  # type: ignore[attr-defined]
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ([], 1, "is no OpenAI-style endpoint"),
        ({"data": []}, 1, "lists no models"),
        ({"data": [{"id": 3}]}, 1, "lists no models"),
        ({"data": [{"id": "m", "max_model_len": 32_768}]}, 0, ""),
        ({"data": [{"id": "m", "aliases": None, "max_model_len": 32_767}]}, 0, "context holds 32,767 tokens"),
        ({"data": [{"id": "\x1b[2Jm"}]}, 0, "does not say how long its context is"),
    ],
)
def test_other_servers(command: Command, clients: Path, answer: Any, code: int, said: str) -> None:
    with HTTPServer(("127.0.0.1", 0), _Strange) as server:
        server.answer = answer  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            done = command("connect", "aider", "--url", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert done.code == code
    assert said in done.err if said else done.err == ""
    assert "\x1b" not in done.out
    assert len(shlex.split(done.out)) > 3 or code


def test_keys_are_told_from_other_variables() -> None:
    kept = {"PATH": "p", "HOME": "h", "KEYBOARD": "de", "SSH_AUTH_SOCK": "s", "API_KEY_FILE": "f", "EDITOR": "vi"}
    assert without_keys({**OTHERS, **kept, "Some_Api_Key": "x", "MISTRAL_API_KEY": "y"}) == kept
