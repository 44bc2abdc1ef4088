"""The open chats, each in its tab. Which ones are open is written down, so that they come back at the next start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import work
from textual.widgets import TabbedContent

from localspec.chat.archive.message import Chat
from localspec.tui.shell.open_tabs import OpenTabs
from localspec.tui.widgets.pane import ChatPane

if TYPE_CHECKING:
    from localspec.tui.shell.app import ChatApp


class ChatTabs(TabbedContent):
    """Tabs are hidden while there is only one."""

    if TYPE_CHECKING:

        @property
        def app(self) -> ChatApp: ...  # type: ignore[override]

    def __init__(self) -> None:
        super().__init__(id="chats")
        self._panes: list[ChatPane] = []  # kept, not looked up: a query goes through every block of every message
        self._settled = False
        """The tabs of last time are there, so that what is open may be written down."""

    @property
    def panes(self) -> list[ChatPane]:
        """Open chats, in the order of their tabs."""
        return list(self._panes)

    @property
    def front(self) -> ChatPane | None:
        """The chat in front; None = there is none yet."""
        return self.active_pane if isinstance(self.active_pane, ChatPane) else None

    async def add(self, pane: ChatPane, before: ChatPane | None = None) -> None:
        """Adds a tab, at the end or before another."""
        await self.add_pane(pane, before=before)
        self._panes.insert(len(self._panes) if before is None else self._panes.index(before), pane)
        self.set_class(len(self._panes) < 2, "single")

    async def drop(self, pane: ChatPane) -> None:
        """Closes a tab."""
        self._panes.remove(pane)
        await self.remove_pane(str(pane.id))
        self.set_class(len(self._panes) < 2, "single")
        self.remember()

    @work(group="tabs")
    async def bring_back(self, chats: list[Chat], front: ChatPane) -> None:
        """Tabs of chats on both sides of the one in front; their messages are drawn when they are looked at."""
        before: ChatPane | None = front
        for chat in chats:
            if chat.id == front.chat_id:
                before = None
            elif all(pane.chat_id != chat.id for pane in self._panes):
                await self.add(ChatPane(chat, asleep=True), before if before in self._panes else None)
        self._settled = True
        self.remember()

    def remember(self) -> None:
        """Writes down what is open."""
        if self._settled and self.front is not None:
            OpenTabs(tuple(pane.key for pane in self._panes), self.front.key).save(self.app.archive)
