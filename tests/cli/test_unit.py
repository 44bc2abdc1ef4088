"""`serve --print-unit`: what systemd and launchd are told, and what no unit may hold."""

from __future__ import annotations

import plistlib
import shlex
import sys
from pathlib import Path

import pytest

from localspec.cli import main
from localspec.cli.commands.serve import unit

WORDS = ["serve", "tiny", "--port", "9000", "--alias", 'a "b" 100%$HOME\\']


def words_of(text: str) -> list[str]:
    """ExecStart as systemd reads it: quotes and escapes as the shell's, then doubled signs."""
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.removeprefix("ExecStart="))]


def test_systemd_starts_the_same_command() -> None:
    text = unit("systemd", WORDS, {"LOCALSPEC_DATA": "/a b"}, Path("/home/x"))
    assert words_of(text) == [sys.executable, "-m", "localspec", *WORDS]
    assert 'Environment="LOCALSPEC_DATA=/a b"' in text
    assert "WorkingDirectory=/home/x\n" in text


def test_launchd_starts_the_same_command() -> None:
    text = unit("launchd", WORDS, {"LOCALSPEC_DATA": "/a b"}, Path("/home/x"))
    told = plistlib.loads(text.encode())
    assert told["ProgramArguments"] == [sys.executable, "-m", "localspec", *WORDS]
    assert told["EnvironmentVariables"] == {"LOCALSPEC_DATA": "/a b"}
    assert told["WorkingDirectory"] == "/home/x"


@pytest.mark.parametrize("wish", [["--print-unit", "systemd"], ["--print-unit=systemd"]])
def test_serve_prints_its_own_command(
    wish: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCALSPEC_API_KEY", raising=False)
    assert main(["serve", *wish, "--port", "9000", "tiny"]) == 0
    assert words_of(capsys.readouterr().out) == [sys.executable, "-m", "localspec", "serve", "--port", "9000", "tiny"]


def test_a_unit_holds_no_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_API_KEY", "secret-key")
    assert main(["serve", "--print-unit", "launchd"]) == 2
    said = capsys.readouterr()
    assert "A unit holds no key" in said.err
    assert "secret-key" not in said.out + said.err
