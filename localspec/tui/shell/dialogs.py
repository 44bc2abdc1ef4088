"""What small screens share: a page that Esc closes, a question with answers, a line to type, and errands on threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.tui.shell.bindings import CLOSE
from localspec.tui.talk.owner import app_of

if TYPE_CHECKING:
    from textual.widget import Widget


class Page(Screen[None]):
    """A full screen above the chat."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def action_close(self) -> None:
        """Back to the chat."""
        self.dismiss(None)

    def compose(self) -> ComposeResult:
        yield Static(self.title or "", classes="page-title", markup=False)
        yield from self.body()
        yield Footer()

    def body(self) -> ComposeResult:
        """What is between title and keys."""
        yield from ()


class Dialog(ModalScreen[ScreenResultType]):
    """A box above what is there; Esc gives up."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def action_close(self) -> None:
        """Gives up: the result is None."""
        self.dismiss(None)


class Choice(Dialog[str | None]):
    """A question; the result is the id of the answer chosen, None = given up."""

    def __init__(self, question: str, answers: Sequence[tuple[str, str, str]]) -> None:
        """`answers`: (id, label, what it does)."""
        super().__init__()
        self._question, self._answers = question, answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False, classes="question")
            options = [
                Option(Content.assemble((label, "bold"), "\n", (doc, "$text-muted")), id=name)
                for name, label, doc in self._answers
            ]
            yield OptionList(*options)

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


# What may wait for the network: done on threads that nothing waits for, not even the end of the program.


class Tell(Protocol):
    """Calls a function on the app's thread, soon, unless it is not wanted any more; never blocks."""

    def __call__(self, call: Callable[..., object], *arguments: object) -> None: ...


class Errands:
    """Of a widget or screen. A new errand makes what the last one would still say unwanted, and so does its removal."""

    def __init__(self, node: Widget) -> None:
        self._node = node
        self._latest = object()

    def begin(self, work: Callable[[Tell], None]) -> None:
        """Runs `work` on a thread of its own; it must catch what it expects to fail."""
        app, this = app_of(self._node), object()
        self._latest = this

        def call_if_wanted(call: Callable[..., object], arguments: tuple[object, ...]) -> None:
            if self._latest is this and self._node.is_running:
                call(*arguments)

        def tell(call: Callable[..., object], *arguments: object) -> None:
            app.call_from_any_thread(call_if_wanted, call, arguments)

        # Not a worker of Textual's: those run on threads that the end of the program waits for.
        threading.Thread(target=work, args=(tell,), name="localspec-errand", daemon=True).start()
