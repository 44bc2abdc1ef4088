"""An object in a process of its own, for comparing engines: two in one process slow each other.

(OpenMP keeps a pool of threads for every thread that has computed; with more of them than CPUs they no longer wait
awake for each other, see `runtime.loading.load_apart`. In processes of their own only the one that works is awake.)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from localspec.errors import LocalspecError

Progress = Callable[[str, float], None]
_GOODBYE_SECONDS = 20.0


class Apart:
    """Makes an object in a new process and calls its methods there; a context manager. Not thread-safe."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, progress: Progress | None = None) -> None:
        """
        Args:
            make: a class or function of a module; called there with `arguments` and `progress=` a reporting function.
            arguments: plain data.
            progress: called here with what `make` reports.

        Raises:
            Whatever `make` raises there.
        """
        context = multiprocessing.get_context("spawn")  # a fork would inherit loaded libraries and their threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._received(progress)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """What the object's method returns."""
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise self._gone() from None
        return self._received(None)

    def close(self) -> None:
        """Ends the process; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(_GOODBYE_SECONDS if self._process.exitcode is None else 0)
        if self._process.exitcode is None:
            self._process.terminate()
            self._process.join()

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _received(self, progress: Progress | None) -> Any:
        while True:
            try:
                kind, content = self._pipe.recv()
            except (EOFError, OSError):
                raise self._gone() from None
            if kind == "error":
                raise content
            if kind == "result":
                return content
            if progress is not None:
                progress(*content)

    def _gone(self) -> LocalspecError:
        self._process.join(1.0)
        code = self._process.exitcode
        killed = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return LocalspecError(f"A measuring process ended unexpectedly ({killed}).", "Was there too little memory?")


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The other process: the one that asks decides when it ends and handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def report(what: str, share: float) -> None:
        pipe.send(("progress", (what, share)))

    try:
        made = make(*arguments, progress=report)
    except BaseException as error:  # noqa: BLE001 - handed to the other side, which raises it
        _send_error(pipe, error)
        return
    pipe.send(("result", None))
    with contextlib.closing(made), contextlib.suppress(EOFError, OSError):
        while (asked := pipe.recv()) is not None:
            method, given = asked
            try:
                pipe.send(("result", getattr(made, method)(*given)))
            except Exception as error:  # noqa: BLE001 - the same
                _send_error(pipe, error)


def _send_error(pipe: Connection, error: BaseException) -> None:
    known = error if isinstance(error, LocalspecError) else LocalspecError(f"A measuring process failed: {error!r}.")
    with contextlib.suppress(OSError):
        pipe.send(("error", known))
