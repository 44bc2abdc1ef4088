"""An engine of this process as a host: the server that a process of models has, on a thread of this one."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from starlette.responses import Response
from starlette.types import ASGIApp

from localspec.errors import Cancelled, LocalspecError
from localspec.llama.exact.choice import Progress
from localspec.runner.host import Use
from localspec.runner.place import Place
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.pool import Lease
from localspec.server.own.answer import Own, OwnAnswers
from localspec.server.own.life import facts_of, state_of
from localspec.server.own.serve import Server

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

_SOCKET_FILES = hasattr(socket, "AF_UNIX")
"""The system has them; Windows has a port of this machine, where the secret keeps strangers out."""


class Here:
    """See `Host`. Loads when it is waited for, on that thread; closed meanwhile, it gives up at the next progress."""

    def __init__(self, load: Callable[[Progress], Engine], closes: bool = True) -> None:
        """
        Args:
            load: gives the engine.
            closes: closes it in the end.
        """
        self._load, self._closes = load, closes
        self._turn = threading.Lock()
        """Guards what is below."""
        self._closed = False
        self.engine: Engine | None = None
        """None until it is loaded."""
        self._use: Callable[[], Use] | None = None
        """None until then, too."""
        self._thread: threading.Thread | None = None
        self.facts: ModelFacts | None = None
        self.last_words: tuple[str, ...] = ()

    @property
    def state(self) -> dict[str, Any]:
        return {} if self.engine is None else state_of(self.engine)

    @property
    def outdated(self) -> str:
        return "" if self.engine is None else self.engine.outdated

    def wait(self, progress: Progress | None = None) -> None:
        def report(what: str, share: float) -> None:
            self._check_open()
            if progress is not None:
                progress(what, share)

        self._check_open()
        engine = self._load(report)
        try:
            facts = facts_of(engine)
            with self._turn:
                self._check_open()
                self._serve(engine)
                self.facts = facts
        except BaseException:
            if self._closes:
                engine.close()
            raise

    @contextmanager
    def use(self) -> Iterator[Use]:
        if self._closed:
            raise _fate()
        if self._use is None:
            raise LocalspecError("The models are not loaded yet.")
        yield self._use()

    def close(self, at_once: bool = False) -> bool:
        with self._turn:
            done, self._closed = self._closed, True
        if self._thread is not None:
            self._thread.join()
        return not done

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("Closed while loading.")

    def _serve(self, engine: Engine) -> None:
        """Begins to. Raises: UsageError if there can be no such socket."""
        answers, secret = OwnAnswers(lambda: Lease(None, "", engine)), secrets.token_urlsafe()

        async def end() -> None:
            answers.end()
            if self._closes:
                await to_thread.run_sync(engine.close)

        server = Server(Own(secret, answers.routes, _nobody), lambda: self._closed, end)
        listening, at, url, leave = _place()

        def run() -> None:
            try:
                server.run([listening])
            finally:
                leave()

        self.engine, self._use = engine, lambda: Use(at, secret, _fate, url)
        self._thread = threading.Thread(target=run, name="localspec-serve", daemon=True)
        self._thread.start()


def _place() -> tuple[socket.socket, Path | None, str, Callable[[], None]]:
    """Where it listens: the socket, its file, its address, and what is done in the end."""
    if _SOCKET_FILES:
        place = Place("here")
        return place.socket, place.path, "http://localhost", place.close
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, None, f"http://127.0.0.1:{listening.getsockname()[1]}", listening.close


def _fate() -> LocalspecError:
    return LocalspecError("The engine is closed.")


async def _nobody() -> ASGIApp:
    """There is nothing for others here."""
    return Response(status_code=404)
