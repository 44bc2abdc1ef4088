"""The terminal chat: what all screens share, and the way between them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from textual import events, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.dom import DOMNode
from textual.driver import Driver
from textual.reactive import reactive
from textual.screen import Screen
from textual.signal import Signal
from textual.timer import Timer

from localspec.chat.archive.archive import Archive
from localspec.chat.plain_text import plain_text
from localspec.chat.prompt.completion import note
from localspec.errors import LocalspecError
from localspec.models.installed import chosen
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.shell import bindings, preferences
from localspec.tui.shell.bindings import bind
from localspec.tui.shell.preferences import Preferences
from localspec.tui.shell.registry import SCREENS, ScreenRow, load
from localspec.tui.talk.answerer import (
    AnswerEnded,
    Answerer,
    AnswerPart,
    Facts,
    LoadFailed,
    Loading,
    ModelReady,
    Prefilled,
)
from localspec.tui.widgets.pane import ChatPane
from localspec.tui.widgets.unsaved import may_leave, would_lose

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
Live = AnswerPart | AnswerEnded | Prefilled
MakeAnswerer = Callable[[str | None, str | None, dict[str, Any]], Answerer]
"""(target, draft, engine settings) -> an answerer that has not started."""


class ChatApp(App[int]):
    """Owns the answerer, the archive and the preferences; screens ask it, and it asks none of them."""

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

    facts: reactive[Facts | None] = reactive(None)
    """Of the model that answers; None while it is being loaded."""

    def __init__(
        self,
        answerer: Answerer,
        archive: Archive,
        preferences: Preferences,
        make: MakeAnswerer | None = None,
        notices: Iterable[str] = (),
        begin: Mapping[str, Any] | None = None,
        resume: bool = True,
    ) -> None:
        """
        Args:
            make: how `load` makes another answerer; None = this one is the only one.
            notices: shown at the start.
            begin: parameters of new chats, and their "system", on top of the preferences'.
            resume: whether the last chat may be gone on with; not with anything in `begin`.
        """
        super().__init__()
        self.answerer, self.archive, self.preferences = answerer, archive, preferences
        self._make = make
        self._named: tuple[str | None, str | None] = (None, None)
        """Target and draft as `load` was told; None = as the start named them."""
        self._notices = tuple(notices)
        self.begin = dict(begin or {})
        """What new chats begin with because the command line says so."""
        self.resume = resume and preferences.resume and not self.begin
        """Whether an earlier chat is in front at the start; with tabs that come back it may be one of them."""
        self.answered: Signal[Live] = Signal(self, "answered")
        """Every message about answers of the chat panes."""
        self.readied: Signal[Facts | None] = Signal(self, "readied")
        """A model became ready, or None: another is being loaded."""
        self.failure = ""
        """Why there is no model; "" = there is one, or it is being loaded."""
        self.stranger = ""
        """Address of the server that answers, until the user has agreed that prompts go there; "" = they may."""
        self.loading: Loading | None = None
        """How far loading is; None = nothing is being loaded."""
        self.unseen: list[str] = []
        """Warnings that have not been on the screen, fit for a terminal; once it is left, those that came too late."""
        self._interrupted = 0.0
        """When Ctrl+C was pressed last, in seconds of the monotonic clock."""
        self._quiet: Timer | None = None
        """Runs out when it is quiet; None = there is no screen."""

    # ---- life

    def get_default_screen(self) -> Screen[Any]:
        return ChatScreen()

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":  # Windows, or another by the environment
            return found
        from localspec.tui.shell.terminal import Terminal

        return Terminal

    def on_mount(self) -> None:
        for theme in preferences.THEMES:
            self.register_theme(theme)
        self.theme = (
            self.preferences.theme if self.preferences.theme in self.available_themes else preferences.DARK.name
        )
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        self.archive.on_notice = self.warn
        for text in (*self._notices, self.archive.notice):
            if text:
                self.say(text, problem=True)
        self._take_keys()
        if not self.is_headless:
            sys.setswitchinterval(_SWITCH_SECONDS)
            self._quiet = self.set_interval(_QUIET_SECONDS, self._tidy)
        self.answerer.start(self)

    async def action_quit(self) -> None:
        """Keeps unsent text, stops what runs, and leaves; asks first if chats would be lost."""
        if not would_lose(self):
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
        self.say("Ctrl+C again leaves.")

    async def _ask_and_leave(self) -> None:
        if await may_leave(self):
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
    def known_keys(self) -> list[Binding]:
        """Those of the app and of the chat, which are there from the start."""
        return [binding for binding in (*self.BINDINGS, *ChatScreen.BINDINGS) if isinstance(binding, Binding)]

    @property
    def pane(self) -> ChatPane | None:
        """The chat in front."""
        return self.chat_screen.pane

    @property
    def context_use(self) -> tuple[int, int] | None:
        """(tokens of the chat in front, tokens that fit); None = not known."""
        pane, facts = self.pane, self.facts
        if pane is None or facts is None or facts.context is None or pane.context_tokens is None:
            return None
        return pane.context_tokens, facts.context

    # ---- models

    def use(self, answerer: Answerer, stranger: str = "") -> None:
        """Answers come from another model from now on; the old one is freed first. `stranger`: see there."""
        for pane in self.chat_screen.panes:
            pane.stop()
        self.facts, self.failure, self.stranger = None, "", stranger
        self.readied.publish(None)
        old, self.answerer = self.answerer, answerer
        self._change(old, answerer)

    def load(self, target: str | None, draft: str | None = None, **settings: Any) -> None:
        """Loads models of this machine, with the engine settings of the preferences and these on top."""
        if self._make is None:
            text = (
                "Answers come from an endpoint, whose models /model lists; without --endpoint localspec loads others."
            )
            self.say(text, problem=True)
            return
        self._named = (target, draft)
        self.use(self._make(target, draft, self.preferences.engine | settings))

    def reload(self) -> None:
        """Loads the models in use again, with the engine settings of the preferences."""
        self.load(*self._named)

    def choose(self, target: str, draft: str | None = None) -> None:
        """Loads models of this machine, now and at later starts, and signs the chat in front with the target."""
        pane = self.pane
        self.load(target, draft)
        if self._make is None:
            return  # nothing was loaded, and the user was told why
        if pane is not None:
            self.archive.set_model(pane.chat_id, target)
        try:
            chosen.choose(target, draft)
        except LocalspecError as error:
            self.say(str(error), problem=True)

    @work(thread=True, group="models")
    def _change(self, old: Answerer, new: Answerer) -> None:
        old.close()  # both may not fit memory at once
        new.start(self)

    def on_loading(self, message: Loading) -> None:
        self.loading = message
        self.chat_screen.show_status()

    def on_model_ready(self, message: ModelReady) -> None:
        self.loading = None
        self.facts = message.facts
        self.readied.publish(message.facts)
        if message.facts.completes:
            self.say(note(message.facts.name), problem=True)
        self.chat_screen.show_status()
        self._import_screens()

    @work(thread=True, exclusive=True, group="import")
    def _import_screens(self) -> None:
        """So that the first opening of a screen keeps no key waiting."""
        for row in SCREENS:
            load(row.home)
        self.call_from_any_thread(self._settle_memory)

    def _settle_memory(self) -> None:
        """What is loaded stays: it is not searched for garbage any more, which would take 0.1 s each time."""
        from localspec.runtime.memory import memory

        if not self.is_headless:
            if not gc.get_freeze_count():
                memory.settle()
            gc.set_threshold(*_GARBAGE)

    def on_load_failed(self, message: LoadFailed) -> None:
        self.loading, self.failure = None, message.error.message
        self.readied.publish(None)
        self.say(str(message.error), problem=True)
        self.chat_screen.show_status()

    def on_answer_part(self, message: AnswerPart) -> None:
        self.answered.publish(message)

    def on_answer_ended(self, message: AnswerEnded) -> None:
        self.answered.publish(message)
        self._stir()

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

    def on_prefilled(self, message: Prefilled) -> None:
        self.answered.publish(message)

    # ---- what screens call

    def say(self, text: str, problem: bool = False) -> None:
        """A note in the corner; the text may quote what comes from outside."""
        self.notify(
            plain_text(text),
            severity="warning" if problem else "information",
            timeout=8 if problem else 4,
            markup=False,
        )

    def warn(self, text: str) -> None:
        """A warning in the corner, from any thread at any time; it stays in `unseen` if the screen is left before."""
        text = plain_text(text)
        self.unseen.append(text)
        self.call_from_any_thread(self._show_warning, text)

    def _show_warning(self, text: str) -> None:
        if not self._exit:
            self.say(text, problem=True)
            self.unseen.remove(text)

    def call_from_any_thread(self, call: Callable[..., object], *arguments: Any) -> None:
        """Calls on the app's own thread, soon, or never if it is being left; never blocks."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(lambda: self.call_later(call, *arguments))

    def open_screen(self, name: str) -> None:
        """Opens a screen of the registry; a second call while it is open does nothing."""
        row = next(row for row in SCREENS if row.name == name)
        kind = load(row.home)
        if not any(isinstance(screen, kind) for screen in self.screen_stack):
            self.push_screen(kind())

    def action_open(self, name: str) -> None:
        self.open_screen(name)

    def copy(self, text: str, what: str) -> None:
        """Copies to the clipboard, by the best way there is, and says which."""
        self._copy(text, what)

    @work(thread=True, group="clipboard")
    def _copy(self, text: str, what: str) -> None:
        from localspec.tui.shell.clipboard import copy

        try:
            way = copy(text, self._write_to_terminal)
        except LocalspecError as error:
            self.call_from_thread(self.say, str(error), True)
        else:
            self.call_from_thread(self.say, f"{what} copied {way}.")

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
            yield SystemCommand(row.title, row.doc[0].upper() + row.doc[1:], self._opener(row))
        yield from self.chat_screen.palette()

    def _opener(self, row: ScreenRow) -> Callable[[], None]:
        return lambda: self.open_screen(row.name)

    # ---- looks and keys

    def _remember_theme(self, theme: Any) -> None:
        if self.preferences.theme != theme.name:
            self.preferences.theme = theme.name
            self.save_preferences()

    def save_preferences(self) -> None:
        """Writes the preferences; trouble is said."""
        try:
            self.preferences.save()
        except LocalspecError as error:
            self.say(str(error), problem=True)

    def _take_keys(self) -> None:
        try:
            keys = bindings.read_keys()
        except LocalspecError as error:
            self.say(str(error), problem=True)
            return
        if keys:
            self.set_keymap(keys)
            self._check_keys(keys)

    @work(thread=True, group="keys")
    def _check_keys(self, keys: dict[str, str]) -> None:
        for row in SCREENS:
            load(row.home)
        unknown = sorted(set(keys) - set(bindings.known()))
        if unknown:
            text = f"{bindings.keys_file()} names {unknown[0]!r}, and no key has that name; F1 lists the names."
            self.call_from_thread(self.say, text, True)

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        names = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        text = f"Keys of {bindings.keys_file().name} are in use already, by {names}; the new use wins."
        if text not in self._said_clashes:
            self._said_clashes.add(text)
            self.say(text, problem=True)

    _said_clashes: set[str] = set()  # noqa: RUF012 - of the process: the file is one for all

    def content(self, text: str) -> Content:
        """Text from outside, as it is: no markup, no control characters."""
        return Content(plain_text(text))
