"""What has loaded models and serves them to this program: a process, or a thread of this one.

A host of models as a server that is asked over HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2 as httpx

from localspec.errors import LocalspecError, heard
from localspec.llama.exact.choice import Progress
from localspec.remote.asking import Asking
from localspec.remote.server import Piece, Server
from localspec.runner import place
from localspec.runner.place import HEADER
from localspec.runtime.loaded import ModelFacts


def _ignored(why: str) -> None:
    """A host of this process is asked."""


@dataclass(eq=False, slots=True)
class Use:
    """Something that is asked of a host."""

    at: Path | None
    """Path of its socket; None = it listens at a port."""
    secret: str
    """Proves that a request comes from the program itself."""
    fate: Callable[[], LocalspecError]
    """What became of the host, to which a connection broke; waits until it is known."""
    url: str = "http://localhost"
    """Its address."""
    outdate: Callable[[str], object] = _ignored
    """The host has said why it answers nothing any more; "" = it does."""
    doing: str = "read a prompt"
    """What the host does for it; changed by who asks. Told if it dies."""

    @property
    def headers(self) -> dict[str, str]:
        """Of its requests."""
        return {HEADER: self.secret}


class Host(Protocol):
    """Has models, or loads them. Thread-safe."""

    facts: ModelFacts | None
    """Of the models; None before they are loaded."""
    last_words: tuple[str, ...]
    """What llama.cpp wrote at the end of the process that died last."""

    @property
    def state(self) -> dict[str, Any]:
        """What may change, as it was last told."""
        ...

    @property
    def outdated(self) -> str:
        """Why it answers nothing any more; "" = it does."""
        ...

    def wait(self, progress: Progress | None = None) -> None:
        """Waits until the models are loaded; gives them up if it raises.

        Raises:
            LocalspecError: whatever loading raises.
            Whatever `progress` raises.
        """
        ...

    def use(self) -> AbstractContextManager[Use]:
        """Something that is asked of it.

        Raises:
            LocalspecError: it answers nothing any more.
        """
        ...

    def close(self, at_once: bool = False) -> bool:
        """Ends answers and frees the models; False if that was done before.

        Args:
            at_once: do not let it keep what it has learned.
        """
        ...


class _Served(Server):
    """A host as a server, which is waited for as long as it lives: `Child` ends a process that hangs."""

    def __init__(self, use: Use) -> None:
        super().__init__(use.url, name="The process of the models")
        self.settings |= {"headers": use.headers, "timeout": None}
        self._use = use

    def check(self, reply: httpx.Response, content: bytes) -> None:
        if not reply.is_success:
            raise heard(**json.loads(content)["error"])

    def failure(self, error: Exception | None, begun: bool = False) -> LocalspecError:
        if error is None or isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
            return self._use.fate()
        return super().failure(error, begun)

    def piece(self, line: str) -> Piece | None:
        if line.startswith('data: {"error":'):
            told = json.loads(line.removeprefix("data: "))
            self._use.outdate(told["outdated"])  # before who asked hears of it
            raise heard(**told["error"])
        return super().piece(line)


def asking_of(use: Use) -> Asking:
    """A client of a host."""
    return Asking(_Served(use)) if use.at is None else Asking(_Served(use), use.at, place.check)
