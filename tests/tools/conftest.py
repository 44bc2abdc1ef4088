"""Servers of tools of our own, in real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec.tools.connections import Connections
from localspec.tools.servers import Server

SCRIPT = Path(__file__).with_name("server.py")
Connect = Callable[..., Connections]


def demo(*words: str, name: str = "demo") -> Server:
    return Server(name, sys.executable, (str(SCRIPT), *words))


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Connect]:
    """Makes connections to these servers, or to one that does what the words say; they are closed in the end."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    made = list[Connections]()

    def connect(*given: Server | str) -> Connections:
        words = [one for one in given if isinstance(one, str)]
        servers = [one for one in given if isinstance(one, Server)]
        made.append(Connections(servers or [demo(*words)]))
        return made[-1]

    yield connect
    for one in made:
        one.close()
