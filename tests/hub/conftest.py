"""A hub of this machine, folders of a test's own, and the command line as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from localspec.cli import main
from localspec.models.hub import download, hub
from localspec.models.hub.hub import Hub
from localspec.models.installed.store import Store
from tests.hub.server import LocalHub, environment

PAIR = ("us/tiny-GGUF", "us/tiny-draft-GGUF")
"""Repositories of the bundled pair on the local hub."""


@pytest.fixture(scope="module")
def _server() -> Iterator[LocalHub]:
    with LocalHub() as server:
        yield server


@pytest.fixture
def local_hub(_server: LocalHub, target_bytes: bytes, draft_bytes: bytes) -> LocalHub:
    """A hub that has the bundled pair, and no faults yet."""
    _server.reset()
    _server.repositories.clear()
    _server.moved.clear()
    _server.accepted.clear()
    _server.add(PAIR[0], {"tiny-target-Q8_0.gguf": target_bytes, "README.md": b"# tiny"}, downloads=7)
    _server.add(PAIR[1], {"tiny-draft-Q8_0.gguf": draft_bytes})
    return _server


@pytest.fixture(scope="session")
def target_bytes(tiny_target: Path) -> bytes:
    return tiny_target.read_bytes()


@pytest.fixture(scope="session")
def draft_bytes(tiny_draft: Path) -> bytes:
    return tiny_draft.read_bytes()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits between tries."""
    monkeypatch.setattr(hub, "_RETRY_WAITS", (0.01, 0.01))
    impatient = SimpleNamespace(sleep=lambda seconds: None, time=time.time)
    monkeypatch.setattr("huggingface_hub.file_download.time", impatient)
    monkeypatch.setattr(download, "_MOST_FAILURES", 2)


@pytest.fixture
def client(local_hub: LocalHub, tmp_path: Path, quick: None) -> Hub:
    """The product's side, inside this process."""
    return Hub(endpoint=local_hub.url, cache=tmp_path / "hf" / "hub")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@dataclass(frozen=True)
class Done:
    """What a program said and did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its standard output, if that is JSON."""
        return json.loads(self.out)


class Program:
    """`localspec` in processes of its own, with a home folder of its own."""

    def __init__(self, hub_url: str, home: Path) -> None:
        self.home, self.environment = home, environment(hub_url, home)
        self.environment["PYTHONPATH"] = os.fspath(Path(__file__).parents[2])
        self.store = Store(home / "data")
        self.cache = home / "hf" / "hub"

    def start(self, *arguments: str, before: Any = None, **variables: str) -> subprocess.Popen[str]:
        """Starts it and does not wait."""
        return subprocess.Popen(
            [sys.executable, "-m", "localspec", *arguments],
            env=self.environment | variables,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )

    def __call__(self, *arguments: str, before: Any = None, **variables: str) -> Done:
        """Runs it to its end."""
        process = self.start(*arguments, before=before, **variables)
        out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err)


@pytest.fixture
def program(local_hub: LocalHub, tmp_path: Path) -> Program:
    home = tmp_path / "home"
    home.mkdir()
    return Program(local_hub.url, home)


class Inside(Program):
    """The same in this process, ten times as fast; for what needs neither a signal nor an environment of its own."""

    def __init__(self, hub_url: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(hub_url, home)
        self._capsys = capsys

    def __call__(self, *arguments: str, before: Any = None, **variables: str) -> Done:
        assert before is None
        assert not variables
        code = main(arguments)
        out, err = self._capsys.readouterr()
        return Done(code, out, err)


@pytest.fixture
def inside(
    local_hub: LocalHub,
    tmp_path: Path,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Inside:
    home = tmp_path / "home"
    home.mkdir()
    found = Inside(local_hub.url, home, capsys)
    for name in ("LOCALSPEC_DATA", "LOCALSPEC_CACHE"):
        monkeypatch.setenv(name, found.environment[name])
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", local_hub.url + template)
    monkeypatch.setattr(constants, "ENDPOINT", local_hub.url)  # as HF_ENDPOINT does, which is read at import
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(found.cache))
    return found
