"""Sends messages on a thread of its own, so that a slow reader holds no sender up: what waits goes as one frame."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from localspec.remote.steps import Figures

Frame: TypeAlias = tuple[list[Any], dict[int, Figures]]
PULSE_SECONDS = 1.0
"""Between two signs of life."""


def received(pipe: Connection) -> Frame:
    """Waits for the next frame.

    Raises:
        EOFError, OSError: the other end is gone.
    """
    frame: Frame = pickle.loads(pipe.recv_bytes())
    return frame


class Outbox:
    """One end's messages to the other one. Thread-safe."""

    def __init__(
        self,
        pipe: Connection,
        news: Callable[[], list[Any]] = list,
        pulse: Callable[[], list[Any]] | None = None,
    ) -> None:
        """
        Args:
            pipe: only this object writes to it.
            news: what goes with each frame, asked on the sending thread.
            pulse: what goes where nothing was said for `PULSE_SECONDS`; None = nothing.
        """
        self._pipe, self._news, self._pulse = pipe, news, pulse
        self._messages: list[Any] = []
        self._figures: dict[int, Figures] = {}
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._send, name="localspec-outbox", daemon=True)
        self._thread.start()

    def post(self, message: Any) -> None:
        """Has a message sent; does not wait."""
        with self._wake:
            self._messages.append(message)
            self._wake.notify()

    def post_event(self, event: tuple[Any, ...], figures: Figures) -> None:
        """Has an event sent (`messages.event_out`); of an answer's figures only the last ones go."""
        with self._wake:
            self._messages.append(event)
            self._figures[event[0]] = figures
            self._wake.notify()

    def close(self) -> None:
        """Sends what was posted, unless the other end is gone, and ends the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _send(self) -> None:
        try:
            while (frame := self._next()) is not None:
                self._pipe.send_bytes(pickle.dumps(frame, pickle.HIGHEST_PROTOCOL))
        except OSError:
            pass  # the reader of this end notices, too

    def _next(self) -> Frame | None:
        """What goes now; None = it is over."""
        with self._wake:
            if not self._messages and not self._closing:
                self._wake.wait(None if self._pulse is None else PULSE_SECONDS)
            quiet = not self._messages
            if quiet and self._closing:
                return None
            messages, figures = self._messages, self._figures
            self._messages, self._figures = [], {}
        if quiet and self._pulse is not None:
            messages = self._pulse()
        return [*self._news(), *messages], figures
