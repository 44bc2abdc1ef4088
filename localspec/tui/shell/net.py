"""The net below the chat: an error that nobody expected is said in a line and logged, and the chat goes on.

Reads the terminal so that a lone Esc counts after ESCDELAY; Textual's own reader looks only every 0.1 s.
"""

from __future__ import annotations

import os
import select
import traceback
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from textwrap import shorten
from time import monotonic

from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.message_pump import MessagePump
from textual.worker import WorkerFailed

from localspec.paths import data_dir

_MOST, _SPAN_SECONDS = 100, 10.0
"""So many errors in so short a time: nothing works any more, and the chat ends."""
_AGAIN_SECONDS = 8.0
"""After which the same error is said and logged again: so long the note of it stands in the corner."""
_LARGEST = 1024 * 1024
"""Bytes of a log; a fuller one is put aside, in place of the one before."""


class Net:
    """What errors fall into. Called on the app's own thread."""

    def __init__(self, say: Callable[[str], object], end: Callable[[str], object], stands: Callable[[], bool]) -> None:
        """`say`: in a line. `end`: leaves the chat, with the sentence of why. `stands`: it can go on."""
        self._say, self._end, self._stands = say, end, stands
        self._times = deque[float](maxlen=_MOST)
        self._said: dict[tuple[object, ...], float] = {}
        """When each error was said last, by its kind and place; seconds of the monotonic clock."""

    def catch(self, error: BaseException) -> None:
        """Says and logs an error; ends the chat if it cannot go on."""
        if isinstance(error, WorkerFailed):
            error = error.error
        now = monotonic()
        self._times.append(now)
        dense = len(self._times) == _MOST and now - self._times[0] < _SPAN_SECONDS
        over = dense or not self._stands()
        last = traceback.extract_tb(error.__traceback__)[-1:]
        kind = (type(error), *((frame.filename, frame.lineno) for frame in last))
        if not over and now - self._said.get(kind, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        self._said[kind] = now
        where = f"{log_file()} says where" if write(error) else "LOCALSPEC_DEBUG=1 shows where"
        what = shorten(repr(error), 120)
        if over:
            self._end(f"The chat ended by an internal error: {what}. {where}; please report it.")
        else:
            self._say(f"The chat goes on after an internal error: {what}. {where}; please report it.")


def log_file() -> Path:
    """Where tracebacks are kept."""
    return data_dir() / "errors.log"


def write(error: BaseException) -> bool:
    """Adds an error with its traceback to the log; False = it cannot be written."""
    path = log_file()
    text = f"{datetime.now():%Y-%m-%d %H:%M:%S}\n{''.join(traceback.format_exception(error))}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _LARGEST:
            path.replace(path.with_suffix(".old.log"))
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return False
    return True


@contextmanager
def handlers_caught(catch: Callable[[Exception], object]) -> Iterator[None]:
    """An error in a handler is caught where it is called, and the widget goes on with its next message.

    Textual ends the widget, and with the app the program. It has no public place to say otherwise.
    """
    dispatch = MessagePump._dispatch_message

    async def caught(self: MessagePump, message: Message) -> None:
        try:
            await dispatch(self, message)
        except Exception as error:  # noqa: BLE001 - the worker's edge
            catch(error)

    MessagePump._dispatch_message = caught  # type: ignore[method-assign]
    try:
        yield
    finally:
        MessagePump._dispatch_message = dispatch  # type: ignore[method-assign]


_LOOK_SECONDS = 0.1
"""How often it is asked, while no key is pressed, whether the app has ended."""
_MARGIN_SECONDS = 0.001
"""After the end of a delay, so that it is over when it is looked."""


class Terminal(LinuxDriver):
    """The driver of Unix terminals."""

    def run_input_thread(self) -> None:
        """Passes keys on until the app ends."""
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        wait = _LOOK_SECONDS
        while not self.exit_event.is_set():
            ready, _, _ = select.select([self.fileno], [], [], wait)
            wait = _LOOK_SECONDS
            if ready:
                read = os.read(self.fileno, 4096)
                if not read:  # the other end is closed
                    self.exit_event.wait(_LOOK_SECONDS)
                text = decode(read)  # empty while a character is only half here: the parser would take that for the end
                for event in parser.feed(text) if text else ():
                    self.process_message(event)
                wait = min(wait, constants.ESCAPE_DELAY + _MARGIN_SECONDS)
            for event in parser.tick():
                self.process_message(event)
