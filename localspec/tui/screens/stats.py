"""Statistics: what drafts brought, in this chat and in all chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from localspec.chat.archive.archive import Archive
from localspec.errors import LocalspecError
from localspec.tui.pages.stats_page import Figures, Position, positions, stats_page
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.page import Page
from localspec.tui.text.passes import read_passes
from localspec.tui.widgets.bindings import bind


class StatsScreen(Page):
    """Numbers and bars; a key switches between this chat and all."""

    CSS_PATH = "stats.tcss"
    TITLE = "Statistics"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("stats.scope", "a,tab", "scope", "This chat/all", "Count this chat or all chats", show=True),
        bind("stats.copy", "c", "copy", "Copy", "Copy the page as text", show=True),
    ]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__(chats)
        self._figures = Figures()
        self._positions: Sequence[Position] = ()
        self._all = False

    def body(self) -> ComposeResult:
        yield Static("", id="scope", markup=False)
        with VerticalScroll(id="scroll"):
            yield Static("Counting ...", id="page", markup=False)

    def on_mount(self) -> None:
        self.query_one("#scroll").focus()
        pane = self.chats.pane
        self._all = pane is None
        self._count()

    def on_resize(self, event: events.Resize) -> None:
        if self._figures.answers:
            self._show()

    def action_scope(self) -> None:
        """The other of this chat and all chats."""
        self._all = not self._all or self.chats.pane is None
        self._count()

    def action_copy(self) -> None:
        """The page, as plain text."""
        self.chats.shell.copy(stats_page(self._figures, self._positions, 80).plain, "Statistics")

    def _count(self) -> None:
        pane = self.chats.pane
        chat = None if self._all or pane is None else pane.chat.id
        self._read(self.session.archive, chat)

    @work(thread=True, exclusive=True, group="stats")
    def _read(self, archive: Archive, chat: int | None) -> None:
        try:
            figures, found = count(archive, chat)
        except LocalspecError as error:
            self.app.call_from_thread(self.query_one("#page", Static).update, str(error))
            return
        self.app.call_from_thread(self._take, figures, found)

    def _take(self, figures: Figures, found: Sequence[Position]) -> None:
        self._figures, self._positions = figures, found
        self._show()

    def _show(self) -> None:
        page = self.query_one("#page", Static)
        width = max(30, self.size.width - 4)
        self.query_one("#scope", Static).update("All chats" if self._all else "This chat")
        page.update(stats_page(self._figures, self._positions, width))


def count(archive: Archive, chat: int | None) -> tuple[Figures, list[Position]]:
    """Figures of a chat and acceptance by position from its passes, or of all chats (None), whose passes are too many.

    Raises:
        LocalspecError: the archive cannot be read.
    """
    stats: list[Mapping[str, Any]] = archive.stats(chat)
    figures = Figures.of(stats)
    if chat is None:
        return figures, []
    passes = []
    for message in archive.tree(chat):
        if message.role == "assistant":
            passes += read_passes(archive.replay(message.id).passes, lambda token: b"")
    return figures, positions(passes)
