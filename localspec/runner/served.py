"""A host of models as a server that is asked over HTTP."""

from __future__ import annotations

import json

import httpx2 as httpx

from localspec.errors import LocalspecError, heard
from localspec.remote.asking import Asking
from localspec.remote.server import Piece, Server
from localspec.runner import place
from localspec.runner.host import Use


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
