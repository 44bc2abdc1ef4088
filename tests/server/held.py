"""A server in the middle of an answer, for as long as a test likes: whatever the machine is doing, one step is made."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from tests.server.live import Live, engine_of


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something becomes true."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


class Stop:
    """A job that holds the engine's thread up between two passes, from when it is its turn until `go` is set."""

    def __init__(self, engine: Engine) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self._engine = engine
        self._thread = threading.Thread(target=engine.on_engine_thread, args=(self._wait,))

    def queue(self) -> None:
        """Returns when the engine knows of it."""
        self._thread.start()
        assert eventually(lambda: self.begun.is_set() or bool(self._engine._jobs))

    def end(self) -> None:
        """Lets the engine go on; a second call does nothing."""
        self.go.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _wait(self) -> None:
        self.begun.set()
        self.go.wait(60)


@contextmanager
def stopped(engine: Engine) -> Iterator[None]:
    """The engine makes no pass meanwhile."""
    stop = Stop(engine)
    stop.queue()
    try:
        assert stop.begun.wait(60)
        yield
    finally:
        stop.end()


def send(live: Live, path: str, body: dict[str, Any]) -> socket.socket:
    """A request over a connection of its own, of which nothing has been read."""
    content = json.dumps(body).encode()
    lines = f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{live.port}", "Content-Type: application/json"
    head = "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode()
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=60)
    connection.sendall(head + content)
    return connection


@contextmanager
def held(
    live: Live, path: str, body: dict[str, Any], count: int = 1, passes: int = 1
) -> Iterator[tuple[socket.socket, list[Generation]]]:
    """A request whose `count` answers were there before the engine made one step; the next waits until this is left.

    Yields the connection it was sent over, and the answers that have a slot. They have had so many passes: 0 if a
    chunk of a long prompt is all that fits the step.
    """
    name = live.service.pool.default
    engine = engine_of(live.service.pool)
    assert eventually(lambda: not engine.running)
    before, behind = Stop(engine), Stop(engine)
    before.queue()
    assert before.begun.wait(60)
    with send(live, path, body) as connection:
        try:
            assert eventually(lambda: live.service.live[name] == count)
            behind.queue()
            before.end()
            assert behind.begun.wait(60)
            running = list(engine.running.values())
            assert eventually(lambda: all(one.stats.passes == passes for one in running))
            yield connection, running
        finally:
            before.end()
            behind.end()
    assert eventually(lambda: not live.service.live[name])
