"""While the archive cannot be written: a line that stays, and a question before the chat is left. All that is in memory
only is saved as soon as there is room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual import work
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import Static

from localspec.chat.plain_text import plain_text
from localspec.tui.shell.dialogs import Choice

if TYPE_CHECKING:
    from localspec.tui.shell.app import ChatApp

_TRY_SECONDS = 5.0
"""How often it is tried to save what is in memory only: a person who has made room does not wait long."""
_QUESTION = "The chats of this session are kept in memory only, and are lost when localspec ends. Leave?"
_ANSWERS = (
    ("stay", "Stay", "/export FILE writes the chat in front to a file; it may be on another disk."),
    ("leave", "Leave", "What was written since then is lost."),
)


class Unsaved(Static):
    """Shown as long as what is written does not last, with the reason."""

    DEFAULT_CSS = "Unsaved { height: auto; padding: 0 2; color: $text-warning; display: none; }"

    class Saved(TextualMessage):
        """All that was in memory only lasts now."""

    if TYPE_CHECKING:

        @property
        def app(self) -> ChatApp: ...  # type: ignore[override]

    def __init__(self) -> None:
        super().__init__(markup=False)

    def on_mount(self) -> None:
        self.set_interval(_TRY_SECONDS, self._try)

    def _try(self) -> None:
        if self.display:
            self._save_back()

    @work(thread=True, exclusive=True, group="save-back")
    def _save_back(self) -> None:
        if self.app.archive.save_back():
            self.post_message(self.Saved())

    def tell(self, app: ChatApp) -> None:
        """Looks at the archive; does nothing else while all is well."""
        wanted = app.archive.file is not None and not app.archive.persistent
        if wanted != self.display:
            self.update(Content(plain_text(app.archive.notice)))
            self.display = wanted


def would_lose(app: ChatApp) -> bool:
    """Whether leaving now loses messages of an open chat."""
    kept = app.archive.persistent or app.archive.file is None
    return not kept and any(pane.path for pane in app.chat_screen.panes)


async def may_leave(app: ChatApp) -> bool:
    """Saves what would be lost if that can be done by now; else asks whether it may be lost."""
    if await asyncio.to_thread(app.archive.save_back):
        return True
    return await app.push_screen_wait(Choice(_QUESTION, _ANSWERS)) == "leave"
