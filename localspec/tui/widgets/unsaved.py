"""What the chat says while its archive cannot be written: a line that stays, and a question before it is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import plain_text
from localspec.tui.dialogs import Choice

if TYPE_CHECKING:
    from localspec.tui.app import ChatApp

_QUESTION = "The chats of this session are kept in memory only, and are lost when localspec ends. Leave?"
_ANSWERS = (
    ("stay", "Stay", "/export FILE writes the chat in front to a file; it may be on another disk."),
    ("leave", "Leave", "What was written since then is lost."),
)


class Unsaved(Static):
    """Shown as long as what is written does not last, with the reason."""

    DEFAULT_CSS = "Unsaved { height: auto; padding: 0 2; color: $text-warning; display: none; }"

    def __init__(self) -> None:
        super().__init__(markup=False)

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
    """Asks whether what would be lost may be."""
    return await app.push_screen_wait(Choice(_QUESTION, _ANSWERS)) == "leave"
