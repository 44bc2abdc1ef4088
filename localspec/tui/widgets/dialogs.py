"""Boxes above what is there, notes in the corner, and errands on threads that nothing waits for, not even the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Protocol

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message_pump import MessagePump
from textual.screen import ModalScreen, ScreenResultType
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.plain_text import pictured, plain_text
from localspec.errors import LocalspecError
from localspec.tui.widgets.registry import CLOSE


def say(node: MessagePump, text: str, problem: bool = False) -> None:
    """Says something in the corner; the text may quote what comes from outside."""
    app, said = node.app, plain_text(text)
    for note in [note for note in app._notifications if note.message == said]:  # has no public name
        app._unnotify(note, refresh=False)  # said again, it stands there once
    app.notify(said, severity="warning" if problem else "information", timeout=8 if problem else 4, markup=False)


@contextmanager
def errors_said(node: MessagePump) -> Iterator[None]:
    """An error of localspec's own ends what is done here, and is said in the corner."""
    try:
        yield
    except LocalspecError as error:
        say(node, str(error), problem=True)


class _Notes(logging.Handler):
    def __init__(self, show: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


@contextmanager
def shown(show: Callable[[str], object]) -> Iterator[None]:
    """Hands warnings to a function, on whatever thread they come, instead of writing them to standard error."""
    logger, notes = logging.getLogger("localspec"), _Notes(show)
    written = logger.propagate
    logger.addHandler(notes)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.propagate = written


class Dialog(ModalScreen[ScreenResultType]):
    """A box above what is there; Esc gives up."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def action_close(self) -> None:
        self.dismiss(None)

    def say(self, text: str, bad: bool = False) -> None:
        """Says something in the line `#note`, in a box that has one; it may quote what comes from outside."""
        note = self.query_one("#note", Static)
        note.update(Content(pictured(text)))
        note.set_class(bad, "bad")


class Choice(Dialog[str | None]):
    """A question; the result is the id of the answer chosen, None = given up. Digits go to the answer of that place."""

    def __init__(self, question: str, answers: Sequence[tuple[str, str, str]]) -> None:
        """`answers`: (id, label, what it does)."""
        super().__init__()
        self._question, self._answers = question, answers
        self._number = ""  # digits typed so far

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            options = [
                Option(Content.assemble((label, "bold"), "\n", (doc, "$text-muted")), id=name)
                for name, label, doc in self._answers
            ]
            yield OptionList(*options)

    def on_key(self, event: events.Key) -> None:
        if not event.key.isdigit():
            self._number = ""
            return
        event.stop()
        self._number = next(
            (number for number in (self._number + event.key, event.key) if 0 < int(number) <= len(self._answers)), ""
        )
        if self._number:
            self.query_exactly_one(OptionList).highlighted = int(self._number) - 1

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


class Line(Dialog[str | None]):
    """One line of text; None = given up."""

    def __init__(self, question: str, value: str = "", placeholder: str = "") -> None:
        super().__init__()
        self._question, self._value, self._placeholder = question, value, placeholder

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            yield Input(self._value, placeholder=self._placeholder)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


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
        """Runs `work` on a thread of its own, with what calls on the app's thread.

        Args:
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
