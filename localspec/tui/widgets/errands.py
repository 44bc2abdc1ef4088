"""What may wait for the network: done on threads that nothing waits for, not even the end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from textual.app import App
from textual.widget import Widget

from localspec.errors import LocalspecError


def call_soon(app: App[Any], call: Callable[..., object], *arguments: Any) -> None:
    """Calls on the app's own thread, soon, or never if it is being left; from any thread, and never blocks."""
    if app._loop is not None:
        with suppress(RuntimeError):  # the loop is closed
            app._loop.call_soon_threadsafe(lambda: app.call_later(call, *arguments))


class Tell(Protocol):
    """Calls a function on the app's thread, soon, unless it is not wanted any more; never blocks."""

    def __call__(self, call: Callable[..., object], *arguments: object) -> None: ...


class Errands:
    """Of a widget or screen. A new errand makes what the last one would still say unwanted, and so does its removal."""

    def __init__(self, node: Widget) -> None:
        self._node = node
        self._latest = object()

    def begin(
        self, work: Callable[[Tell], None], what: str = "", failed: Callable[[LocalspecError], object] | None = None
    ) -> None:
        """Runs `work` on a thread of its own.

        Args:
            work: gets what calls on the app's thread.
            what: words for the errand in the sentence on an unexpected error, such as "The search".
            failed: hears of its errors on the app's thread; None = they are internal errors, as those of a worker.
        """
        app, this = self._node.app, object()
        self._latest = this

        def call_if_wanted(call: Callable[..., object], arguments: tuple[object, ...]) -> None:
            if self._latest is this and self._node.is_running:
                call(*arguments)

        def tell(call: Callable[..., object], *arguments: object) -> None:
            call_soon(app, call_if_wanted, call, arguments)

        def run() -> None:
            try:
                work(tell)
            except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
                if failed is None:
                    call_soon(app, app._handle_exception, error)
                    return
                known = isinstance(error, LocalspecError)
                tell(failed, error if known else LocalspecError(f"{what} failed: {error!r}."))

        # Not a worker of Textual's: those run on threads that the end of the program waits for.
        threading.Thread(target=run, name="localspec-errand", daemon=True).start()


def call_while_running(node: Widget, call: Callable[..., object], *arguments: Any) -> None:
    """Calls on the app's own thread and waits for it, unless the widget or screen is gone; from another thread."""
    if node.is_running:
        node.app.call_from_thread(call, *arguments)
