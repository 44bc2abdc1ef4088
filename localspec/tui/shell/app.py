"""The terminal chat: what all screens share, and the way between them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from textual import events, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.driver import Driver
from textual.screen import Screen
from textual.timer import Timer

from localspec.chat.plain_text import one_line, plain_text
from localspec.chat.prompt.prompt import note
from localspec.errors import LocalspecError
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.slash import SlashCommands
from localspec.tui.shell.net import Net, handlers_caught
from localspec.tui.talk.posts import AnswerEnded, LoadFailed, Loading, ModelReady, Posts
from localspec.tui.talk.session import Session
from localspec.tui.widgets import registry
from localspec.tui.widgets.dialogs import say
from localspec.tui.widgets.errands import call_soon
from localspec.tui.widgets.hints import does_not_last, may_leave
from localspec.tui.widgets.pane import ChatPane
from localspec.tui.widgets.registry import SCREENS, bind, load
from localspec.tui.widgets.themes import DARK, THEMES

_HERE = Path(__file__).parent
_GARBAGE = (5_000, 5, 1_000_000)
"""How many new objects it takes to search the youngest for garbage, and how often those a little older are; drawing
makes thousands of short life. The old ones are searched only when it is quiet: with them it takes longer than a frame.
"""
_TWICE_SECONDS = 2.0
"""Between two presses of Ctrl+C that leave."""
_QUIET_SECONDS = 2.0
"""It is quiet when for so long no key and no mouse was touched, and no answer is under way."""
_SWITCH_SECONDS = 0.0005
"""How long the engine's thread waits for the interpreter while the screen draws, instead of Python's 0.005: a pass of a
small model takes 0.001 and needs the interpreter several times."""


class ChatApp(App[int]):
    """What the chat lies in: the other screens, the clipboard, warnings, keys, and the messages of answerers."""

    TITLE = "localspec"
    # Whole paths: an app that inherits finds them. With the default screen's, which Textual does not load itself.
    CSS_PATH: ClassVar = [_HERE / "app.tcss", _HERE.parent / "screens" / "chat.tcss"]
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.quit", "ctrl+q", "quit", "Quit", "Leave; unsent text is kept", show=True, priority=True),
        bind("app.interrupt", "ctrl+c", "interrupt", "Stop", "Copy marked text; else stop the answer; twice leaves"),
        *(
            bind(f"open.{row.name}", row.key, f"open('{row.name}')", row.title, row.doc, show=row.show, priority=True)
            for row in SCREENS
            if row.key
        ),
    ]

    def __init__(self, session: Session, notices: Iterable[str] = ()) -> None:
        """`notices`: shown at the start."""
        super().__init__()
        self.session = session
        self._notices = tuple(notices)
        self.unseen: list[str] = []
        """Warnings that have not been on the screen, fit for a terminal; once it is left, those that came too late."""
        self._interrupted = 0.0
        """When Ctrl+C was pressed last, in seconds of the monotonic clock."""
        self._quiet: Timer | None = None
        """Runs out when it is quiet; None = there is no screen."""
        self._net: Net | None = None
        """What unexpected errors fall into; None = they end the app."""
        self.ended_by = ""
        """The sentence of the error that ended the chat."""

    # ---- life

    @contextmanager
    def kept_up(self) -> Iterator[None]:
        """While this holds, no unexpected error ends the chat, as long as it can go on."""
        self._net = Net(self.warn, self._end_by, lambda: len(self.screen_stack) > 0 and self.pane is not None)
        try:
            with handlers_caught(self._handle_exception):
                yield
        finally:
            self._net = None

    def _handle_exception(self, error: Exception) -> None:
        """Textual calls this, which is not public, with what workers, timers, callbacks and drawing raise."""
        if self._net is None:
            super()._handle_exception(error)
        else:
            self._net.catch(error)

    def _end_by(self, sentence: str) -> None:
        """Ends the chat by an error; unsent text is kept if that can still be done."""
        if not self.ended_by:
            self.ended_by = sentence
            self.exit(return_code=1)
            for pane in self.chat_screen.panes if self.screen_stack else ():
                pane.leave()

    def get_default_screen(self) -> Screen[Any]:
        return ChatScreen(self.session, self)

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":  # Windows, or another by the environment
            return found
        from localspec.tui.shell.net import Terminal

        return Terminal

    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        liked = self.session.preferences.theme
        self.theme = liked if liked in self.available_themes else DARK.name
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        archive = self.session.archive
        archive.on_notice = self.warn
        for text in (*self._notices, archive.notice, self.session.fault):
            if text:
                say(self, text, problem=True)
        self._take_keys()
        if not self.is_headless:
            sys.setswitchinterval(_SWITCH_SECONDS)
            self._quiet = self.set_interval(_QUIET_SECONDS, self._tidy)
        self.session.answerer.start(Posts(self))

    async def action_quit(self) -> None:
        """Keeps unsent text, stops what runs, and leaves; asks first if chats would be lost."""
        written = any(pane.path for pane in self.chat_screen.panes)
        if not (written and does_not_last(self.session.archive)):
            self._leave()
        elif not any(worker.group == "quit" for worker in self.workers):  # else it is being asked
            self.run_worker(self._ask_and_leave(), group="quit")

    async def action_interrupt(self) -> None:
        """Stops the answer in front; a second time soon after, it leaves."""
        again, self._interrupted = monotonic() - self._interrupted < _TWICE_SECONDS, monotonic()
        if again:
            await self.action_quit()
            return
        pane = self.pane
        if pane is not None and pane.answer is not None:
            pane.stop()
        say(self, "Ctrl+C again leaves.")

    async def _ask_and_leave(self) -> None:
        if await may_leave(self, self.session.archive):
            self._leave()

    def _leave(self) -> None:
        for pane in self.chat_screen.panes:
            pane.leave()
        self.exit(0)

    @property
    def chat_screen(self) -> ChatScreen:
        """The screen at the bottom."""
        screen = self.screen_stack[0]
        assert isinstance(screen, ChatScreen)
        return screen

    @property
    def pane(self) -> ChatPane | None:
        """The chat in front."""
        return self.chat_screen.pane

    # ---- models and answers

    def on_loading(self, message: Loading) -> None:
        self.session.loading = message
        self.chat_screen.show_status()

    def on_model_ready(self, message: ModelReady) -> None:
        self.session.loading, self.session.facts = None, message.facts
        self.chat_screen.learn_anew()
        if message.facts.completes:
            say(self, note(message.facts.name), problem=True)
        self._import_screens()

    @work(thread=True, exclusive=True, group="import")
    def _import_screens(self) -> None:
        """So that the first opening of a screen keeps no key waiting."""
        for row in SCREENS:
            load(row.home)
        call_soon(self, self._settle_memory)

    def _settle_memory(self) -> None:
        """What is loaded stays: it is not searched for garbage any more, which would take 0.1 s each time."""
        from localspec.runtime import memory

        if not self.is_headless:
            if not gc.get_freeze_count():
                memory.settle()
            gc.set_threshold(*_GARBAGE)

    def on_load_failed(self, message: LoadFailed) -> None:
        self.session.loading, self.session.failure = None, message.error.message
        self.chat_screen.learn_anew()
        say(self, str(message.error), problem=True)

    def on_answer_ended(self, message: AnswerEnded) -> None:
        self._stir()

    def on_chat_pane_long_answered(self, event: ChatPane.LongAnswered) -> None:
        """Nobody need look for it: the terminal is told."""
        if self._driver is not None:
            self._driver.write(sign(self.session.preferences.answer_end, self.app_focus, event.title))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent):
            self._stir()
        await super().on_event(event)

    def _stir(self) -> None:
        """It is not quiet."""
        if self._quiet is not None:
            self._quiet.reset()

    def _tidy(self) -> None:
        """Searches all there is for garbage, once each time it has become quiet; a race on another screen is not."""
        answering = any(pane.answer is not None for pane in self.chat_screen.panes)
        if self._quiet is not None and self.screen is self.chat_screen and not answering:
            self._quiet.pause()
            gc.collect()

    # ---- what is called from elsewhere

    def warn(self, text: str) -> None:
        """A warning in the corner, from any thread at any time; it stays in `unseen` if the screen is left before."""
        text = plain_text(text)
        self.unseen.append(text)
        call_soon(self, self._show_warning, text)

    def _show_warning(self, text: str) -> None:
        if not self._exit:
            say(self, text, problem=True)
            self.unseen.remove(text)

    def open(self, name: str, *words: str) -> None:
        """Opens a screen of the registry; a second call while it is open does nothing."""
        row = next(row for row in SCREENS if row.name == name)
        kind = load(row.home)
        if not any(isinstance(screen, kind) for screen in self.screen_stack):
            self.push_screen(kind(self.chat_screen, *words))

    def action_open(self, name: str) -> None:
        self.open(name)

    async def command(self, name: str, rest: str) -> None:
        """Runs a slash command of `registry.OWN`. Raises: LocalspecError if something is wrong with it."""
        await SlashCommands(self.chat_screen).run(name, rest)

    def copy(self, text: str, what: str) -> None:
        """Copies to the clipboard, by the best way there is, and says which."""
        self._copy(text, what)

    @work(thread=True, group="clipboard")
    def _copy(self, text: str, what: str) -> None:
        from localspec.tui.shell.clipboard import copy

        try:
            way = copy(text, self._write_to_terminal)
        except LocalspecError as error:
            self.call_from_thread(say, self, str(error), True)
        else:
            self.call_from_thread(say, self, f"{what} copied {way}.")

    def _write_to_terminal(self, sequence: str) -> bool:
        """Writes an escape sequence to the terminal; False = there is none."""
        driver = self._driver
        if driver is None or self.is_headless:
            return False
        self.call_from_thread(driver.write, sequence)
        return True

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        for row in SCREENS:
            yield SystemCommand(row.title, row.doc[0].upper() + row.doc[1:], partial(self.open, row.name))
        yield from self.chat_screen.palette()

    # ---- looks and keys

    def _remember_theme(self, theme: Any) -> None:
        liked = self.session.preferences
        if liked.theme != theme.name:
            liked.theme = theme.name
            try:
                liked.save()
            except LocalspecError as error:
                say(self, str(error), problem=True)

    def _take_keys(self) -> None:
        try:
            keys = registry.read_keys()
        except LocalspecError as error:
            say(self, str(error), problem=True)
            return
        if keys:
            self.set_keymap(keys)
            self._check_keys(keys)

    @work(thread=True, group="keys")
    def _check_keys(self, keys: dict[str, str]) -> None:
        for row in SCREENS:
            load(row.home)
        unknown = sorted(set(keys) - set(registry.known()))
        if unknown:
            text = f"{registry.keys_file()} names {unknown[0]!r}, and no key has that name; F1 lists the names."
            self.call_from_thread(say, self, text, True)

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        names = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        text = f"Keys of {registry.keys_file().name} are in use already, by {names}; the new use wins."
        if text not in self._said_clashes:
            self._said_clashes.add(text)
            say(self, text, problem=True)

    _said_clashes: set[str] = set()  # noqa: RUF012 - of the process: the file is one for all


BELL = "\a"


def sign(wish: str, in_front: bool, title: str) -> str:
    """What tells the terminal that a long answer has ended; "" = nothing.

    Args:
        wish: `Preferences.answer_end`.
        in_front: the terminal is, as far as it says.
        title: of the chat.
    """
    if wish == "notify":
        sequence = f"\x1b]9;localspec: the answer of {one_line(title or 'a new chat')} is there\a"
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\" if os.environ.get("TMUX") else sequence
    return BELL if wish == "bell" or (wish == "auto" and not in_front) else ""
