"""A full screen above the chat, which Esc closes."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static

from localspec.tui.screens.chat import ChatScreen
from localspec.tui.widgets.registry import CLOSE


class Page(Screen[None]):
    """Opened from the chat, and made with it."""

    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-high")]  # noqa: RUF012 - Textual does not declare it as one of the class
    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__()
        self.chats, self.session = chats, chats.session

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
