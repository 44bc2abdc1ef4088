"""A server for the program alone, on a real socket, and a client that reads all it tells."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

from localspec.engine.slot import FinishReason
from localspec.errors import LocalspecError, heard
from localspec.remote.answerer import Hearer, Question, Steps, question_out
from localspec.runner.own_socket import HEADER
from localspec.runtime.pool import Pool
from localspec.server.http import listen
from localspec.server.own.serve import Own, OwnAnswers


@dataclass
class Heard:
    """One answer."""

    text: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    taken: int | None = None
    steps: list[Steps] = field(default_factory=list)
    hearer: Hearer = field(default_factory=Hearer)
    failure: LocalspecError | None = None

    @property
    def tokens(self) -> list[int]:
        return [token for one in self.steps for token in one.tokens]

    @property
    def finish(self) -> FinishReason | None:
        return self.steps[-1].finish

    def take(self, line: str) -> None:
        """A line of the stream."""
        if not line.startswith("data: {"):
            return
        data = json.loads(line.removeprefix("data: "))
        if "error" in data:
            self.failure = heard(**data["error"])
            return
        if "taken" in data["localspec"]:
            self.taken = data["localspec"]["taken"]
            return
        delta = data["choices"][0]["delta"]
        self.text += delta.get("content", "")
        self.thinking += delta.get("reasoning_content", "")
        self.calls += delta.get("tool_calls", [])
        self.steps.append(self.hearer.take(data["localspec"]))


def body_of(question: Question) -> dict[str, Any]:
    """What the chat asks for."""
    return {"id": "1", "question": question_out(question)}


def lines(client: httpx.Client, body: dict[str, Any]) -> Generator[str]:
    """Lines of a stream as they come.

    Raises:
        LocalspecError: it was refused.
    """
    with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            raise heard(**json.loads(reply.read())["error"])
        yield from reply.iter_lines()


def ask(client: httpx.Client, body: dict[str, Any]) -> Heard:
    """A whole answer."""
    found = Heard()
    for line in lines(client, body):
        found.take(line)
    return found


async def nobody_else() -> Starlette:
    """An application that has no paths."""
    return Starlette()


@contextmanager
def serving(pool: Pool) -> Iterator[httpx.Client]:
    """A client of a server over a pool."""
    app = Own("secret", OwnAnswers(lambda: pool.lease(pool.default)).routes, nobody_else)
    listening = listen.bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],), name="test-server")
    thread.start()
    try:
        url, headers = f"http://127.0.0.1:{listening.getsockname()[1]}", {HEADER: "secret"}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
        assert not thread.is_alive()
