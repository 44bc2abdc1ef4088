"""`localspec serve`: options, keys, and what is refused before anything listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from localspec.cli.commands.serve import KEY_VARIABLE, api_keys
from localspec.errors import UsageError
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--host", "0.0.0.0"), 2, "no API key"),
        (("--port", "70000"), 2, "port is 70000"),
        (("--slots", "0"), 2, "slots is 0"),
        (("--branches", "2", "--slots", "2"), 2, "trees need one slot"),
        (("--idle-unload", "-1"), 2, "--idle-unload is -1"),
        (("--max-queue", "-1"), 2, "--max-queue is -1"),
        (("--cors", "chat.example"), 2, "chat.example"),
        (("--api-key-file", "/nowhere/keys"), 2, "/nowhere/keys"),
        (("tiny", "--target", "tiny"), 2, "not both"),
        (("no-such-model",), 3, "no-such-model"),
        (("--drafter", "nobody", "--port", "0"), 2, "nobody"),
    ],
)
def test_what_cannot_be_is_one_sentence(command: Command, options: tuple[str, ...], code: int, words: str) -> None:
    result = command("serve", *options)
    assert result.code == code
    assert words in result.err
    assert len(result.err.splitlines()) == 1


def test_a_model_that_cannot_be_loaded_ends_the_server(command: Command, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    result = command("serve", str(broken), "--port", "0")
    assert result.code == 3
    assert "broken" in result.err
    assert "Traceback" not in result.err


def test_a_port_that_is_taken_is_one_sentence(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = command("serve", "--port", str(port))
    assert result.code == 2
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert f"Port {port}" in line
    assert "--port" in line


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert api_keys(None) == ()
    path = tmp_path / "keys"
    path.write_text("# for the editor\nfirst key\n\n  second  \n", encoding="utf-8")
    assert api_keys(str(path)) == ("first key", "second")
    monkeypatch.setenv(KEY_VARIABLE, " third ")
    assert api_keys(str(path)) == ("first key", "second", "third")
    path.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no API key"):
        api_keys(str(path))
