"""The app around the screens: themes, the way between them, warnings; an unexpected error is logged and said, and the
chat goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from textwrap import shorten
from time import monotonic
from typing import Any, ClassVar

from textual import events, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.driver import Driver
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.theme import Theme
from textual.timer import Timer
from textual.worker import WorkerFailed

from localspec.chat.plain_text import one_line, plain_text
from localspec.chat.prompt.prompt import note
from localspec.paths import data_dir
from localspec.remote.answerer import AnswerEnded, LoadFailed, Loading, ModelReady
from localspec.tools.toolbox import FolderFile
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.talk.session import Posted, Posts, Session
from localspec.tui.widgets import registry
from localspec.tui.widgets.chat_tabs import does_not_last, may_leave
from localspec.tui.widgets.dialogs import ChoiceDialog, errors_said, say
from localspec.tui.widgets.pane import ChatPane
from localspec.tui.widgets.registry import SCREENS, bind, load

_HERE = Path(__file__).parent
_GARBAGE = (5_000, 5, 1_000_000)
"""How many new objects it takes to search the youngest for garbage, and how often those a little older are; drawing
makes thousands of short life. The old ones are searched only when it is quiet: with them it takes longer than a frame.
"""
_TWICE_SECONDS = 2.0  # between two presses of Ctrl+C that leave
_QUIET_SECONDS = 2.0  # it is quiet when for so long no key and no mouse was touched, and no answer is under way
_SWITCH_SECONDS = 0.0005
"""How long the engine's thread waits for the interpreter while the screen draws, instead of Python's 0.005: a pass of a
small model takes 0.001 and needs the interpreter several times."""
_MOST, _SPAN_SECONDS = 100, 10.0  # so many errors in so short a time: nothing works any more, and the chat ends
_AGAIN_SECONDS = 8.0  # after which the same error is said and logged again: so long the note of it stands in the corner
_LARGEST = 1024 * 1024  # bytes of a log; a fuller one is put aside, in place of the one before
_COLOURS = {
    "primary": ("#7aa7d9", "#2b5f96"),
    "secondary": ("#6d8299", "#5a6b7d"),
    "accent": ("#e0a458", "#9a5b00"),
    "foreground": ("#d7dae0", "#1f242b"),
    "background": ("#14171c", "#f7f7f4"),
    "surface": ("#191d23", "#efefea"),
    "panel": ("#222831", "#e3e4df"),
    "success": ("#7fb685", "#2f6b3a"),
    "warning": ("#d9a441", "#8a5a00"),
    "error": ("#d9706c", "#a1312d"),
}
"""Of two calm themes, a dark and a light one: one accent, readable contrast. All of Textual's can be chosen, too."""
_DARK: dict[str, Any] = {part: dark for part, (dark, _) in _COLOURS.items()}
_LIGHT: dict[str, Any] = {part: light for part, (_, light) in _COLOURS.items()}
DARK = Theme("localspec-dark", dark=True, **_DARK)
LIGHT = Theme("localspec-light", dark=False, **_LIGHT)


def log_file() -> Path:
    return data_dir() / "errors.log"


def write(error: BaseException) -> bool:
    """Adds an error with its traceback to the log; False = it cannot be written."""
    path = log_file()
    text = f"{datetime.now():%Y-%m-%d %H:%M:%S}\n{''.join(traceback.format_exception(error))}\n"
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _LARGEST:
            path.replace(path.with_suffix(".old.log"))
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
            file.write(text)
        return True
    return False


class ChatApp(App[int]):
    """What the chat lies in: the other screens, the clipboard, warnings, keys, and the messages of answerers."""

    TITLE = "localspec"
    # Whole paths: an app that inherits finds them. With the default screen's, which Textual does not load itself.
    CSS_PATH: ClassVar = [_HERE / "app.tcss", _HERE.parent / "screens" / "chat.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.quit", "ctrl+q", "quit", "Quit", "Leave; unsent text is kept", show=True, priority=True),
        bind("app.interrupt", "ctrl+c", "interrupt", "Stop", "Copy marked text; else stop the answer; twice leaves"),
        *(
            bind(f"open.{row.name}", row.key, f"open('{row.name}')", row.title, row.doc, show=row.show, priority=True)
            for row in SCREENS
            if row.key
        ),
    ]

    def __init__(self, session: Session, notices: Iterable[str] = (), folder: FolderFile | None = None) -> None:
        """`folder`: servers that the user is asked for."""
        super().__init__()
        self.session = session
        self._notices, self._folder = tuple(notices), folder
        self.unseen: list[str] = []
        """Warnings that have not been on the screen, fit for a terminal; once it is left, those that came too late."""
        self._interrupted = 0.0  # when Ctrl+C was pressed last, in seconds of the monotonic clock
        self._quiet: Timer | None = None  # runs out when it is quiet; None = there is no screen
        self._kept_up = False  # unexpected errors do not end it
        self._error_times = deque[float](maxlen=_MOST)
        self._said_errors: dict[tuple[object, ...], float] = {}  # when each was said last, by its kind and place
        self.ended_by = ""  # the sentence of the error that ended the chat

    @contextmanager
    def kept_up(self) -> Iterator[None]:
        """While this holds, no unexpected error ends the chat, as long as it can go on. An error in a handler is caught
        where it is called, and the widget goes on with its next message: Textual ends the widget, and with the app the
        program, and has no public place to say otherwise."""
        dispatch = MessagePump._dispatch_message

        async def caught(pump: MessagePump, message: Message) -> None:
            try:
                await dispatch(pump, message)
            except Exception as error:  # noqa: BLE001 - the worker's edge
                self._handle_exception(error)

        MessagePump._dispatch_message = caught  # type: ignore[method-assign, assignment]
        self._kept_up = True
        try:
            yield
        finally:
            self._kept_up = False
            MessagePump._dispatch_message = dispatch  # type: ignore[method-assign]

    def _handle_exception(self, error: Exception) -> None:
        """Textual calls this, which is not public, with what workers, timers, callbacks and drawing raise: it is said
        and logged, and the chat ends if it cannot go on."""
        if not self._kept_up:
            super()._handle_exception(error)
            return
        found: BaseException = error.error if isinstance(error, WorkerFailed) else error
        now = monotonic()
        self._error_times.append(now)
        dense = len(self._error_times) == _MOST and now - self._error_times[0] < _SPAN_SECONDS
        over = dense or not self.screen_stack or self.pane is None
        last = traceback.extract_tb(found.__traceback__)[-1:]
        kind = (type(found), *((frame.filename, frame.lineno) for frame in last))
        if not over and now - self._said_errors.get(kind, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        self._said_errors[kind] = now
        where = f"{log_file()} says where" if write(found) else "LOCALSPEC_DEBUG=1 shows where"
        what = shorten(repr(found), 120)
        if not over:
            self.warn(f"The chat goes on after an internal error: {what}. {where}; please report it.")
        elif not self.ended_by:  # unsent text is kept if that can still be done
            self.ended_by = f"The chat ended by an internal error: {what}. {where}; please report it."
            self.exit(return_code=1)
            for pane in self.chat_screen.panes if self.screen_stack else ():
                pane.leave()

    def get_default_screen(self) -> Screen[Any]:
        self.chat_screen = ChatScreen(self.session)
        return self.chat_screen

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":  # Windows, or another by the environment
            return found
        from localspec.tui.shell.terminal import Terminal

        return Terminal

    def on_mount(self) -> None:
        liked, archive = self.session.preferences, self.session.archive

        def remember(theme: Theme) -> None:
            if liked.theme != theme.name:
                liked.theme = theme.name
                with errors_said(self):
                    liked.save()

        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = liked.theme if liked.theme in self.available_themes else DARK.name
        self.theme_changed_signal.subscribe(self, remember)
        archive.on_notice = self.warn
        for text in (*self._notices, archive.notice, self.session.fault):
            if text:
                say(self, text, problem=True)
        with errors_said(self):
            if keys := registry.read_keys():
                self.set_keymap(keys)
                self._check_keys(keys)
        if not self.is_headless:
            sys.setswitchinterval(_SWITCH_SECONDS)
            self._quiet = self.set_interval(_QUIET_SECONDS, self._tidy)
        self.session.answerer.start(Posts(self))
        if self._folder is not None:
            self._ask_for(self._folder)

    @work(group="folder")
    async def _ask_for(self, folder: FolderFile) -> None:
        """Whether the servers of a folder's file may start."""
        rows = [("no", "Not now", "they are left out"), ("yes", "Use them", "here, while the file stays as it is")]
        if await self.push_screen_wait(ChoiceDialog(folder.question, rows)) == "yes":
            self.session.servers = folder.added(self.session.servers)

    async def action_quit(self) -> None:
        """Keeps unsent text, stops what runs, and leaves; asks first if chats would be lost."""

        async def ask() -> None:
            if await may_leave(self, self.session.archive):
                self._leave()

        written = any(pane.path for pane in self.chat_screen.panes)
        if not (written and does_not_last(self.session.archive)):
            self._leave()
        elif not any(worker.group == "quit" for worker in self.workers):  # else it is being asked
            self.run_worker(ask(), group="quit")

    async def action_interrupt(self) -> None:
        again, self._interrupted = monotonic() - self._interrupted < _TWICE_SECONDS, monotonic()
        if again:
            await self.action_quit()
            return
        if self.pane is not None and self.pane.answer is not None:
            self.pane.stop()
        say(self, "Ctrl+C again leaves.")

    def _leave(self) -> None:
        for pane in self.chat_screen.panes:
            pane.leave()
        self.exit(0)

    @property
    def pane(self) -> ChatPane | None:
        return self.chat_screen.pane

    def on_posted(self, event: Posted) -> None:
        told, session = event.told, self.session
        if isinstance(told, Loading):
            session.loading = told
            self.chat_screen.show_status()
        elif isinstance(told, ModelReady):
            session.loading, session.facts = None, told.facts
            self.chat_screen.learn_anew()
            if told.facts.completes:
                say(self, note(told.facts.name), problem=True)
            self._import_screens()
        elif isinstance(told, LoadFailed):
            session.loading, session.failure = None, told.error.message
            self.chat_screen.learn_anew()
            say(self, str(told.error), problem=True)
        elif isinstance(told, AnswerEnded):
            self._stir()

    @work(exclusive=True, group="import")
    async def _import_screens(self) -> None:
        """So that the first opening of a screen keeps no key waiting. What is loaded stays: it is not searched for
        garbage any more, which would take 0.1 s each time."""
        await asyncio.to_thread(_load_screens)
        if not self.is_headless:
            from localspec.runtime import memory

            if not gc.get_freeze_count():
                memory.settle()
            gc.set_threshold(*_GARBAGE)

    def on_chat_pane_long_answered(self, event: ChatPane.LongAnswered) -> None:
        """The user may look elsewhere: the terminal signals the end."""
        if self._driver is not None:
            self._driver.write(sign(self.session.preferences.answer_end, self.app_focus, event.title))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent):
            self._stir()
        await super().on_event(event)

    def _stir(self) -> None:
        if self._quiet is not None:
            self._quiet.reset()

    def _tidy(self) -> None:
        """Searches all there is for garbage, once each time it has become quiet; a race on another screen is not."""
        answering = any(pane.answer is not None for pane in self.chat_screen.panes)
        if self._quiet is not None and self.screen is self.chat_screen and not answering:
            self._quiet.pause()
            gc.collect()

    def warn(self, text: str) -> None:
        """A warning in the corner, from any thread at any time, and never blocks; it stays in `unseen` if the screen is
        left before."""
        text = plain_text(text)
        self.unseen.append(text)

        def show() -> None:
            if not self._exit:
                say(self, text, problem=True)
                self.unseen.remove(text)

        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.call_later, show)

    def action_open(self, name: str) -> None:
        self.chat_screen.open(name)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        for row in SCREENS:
            yield SystemCommand(row.title, row.doc[0].upper() + row.doc[1:], partial(self.chat_screen.open, row.name))
        yield from self.chat_screen.palette()

    @work(group="keys")
    async def _check_keys(self, keys: dict[str, str]) -> None:
        await asyncio.to_thread(_load_screens)
        unknown = sorted(set(keys) - set(registry.known()))
        if unknown:
            text = f"{registry.keys_file()} names {unknown[0]!r}, and no key has that name; F1 lists the names."
            say(self, text, problem=True)

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        names = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        text = f"Keys of {registry.keys_file().name} are in use already, by {names}; the new use wins."
        if text not in self._said_clashes:
            self._said_clashes.add(text)
            say(self, text, problem=True)

    _said_clashes: set[str] = set()  # noqa: RUF012 - of the process: the file is one for all


def _load_screens() -> None:
    for row in SCREENS:
        load(row.home)


BELL = "\a"


def sign(wish: str, in_front: bool, title: str) -> str:
    """What tells the terminal that a long answer has ended; "" = nothing. `wish`: `Preferences.answer_end`. `in_front`:
    the terminal is, as far as it says. `title`: of the chat."""
    if wish == "notify":
        sequence = f"\x1b]9;localspec: the answer of {one_line(title or 'a new chat')} is there\a"
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\" if os.environ.get("TMUX") else sequence
    return BELL if wish == "bell" or (wish == "auto" and not in_front) else ""
