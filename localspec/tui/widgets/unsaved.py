"""While the archive cannot be written: a line that stays, and a question before the chat is left. All that is in memory
only is saved as soon as there is room."""

from __future__ import annotations

import asyncio
from typing import Any

from textual import work
from textual.app import App
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import Static

from localspec.chat.archive.archive import Archive
from localspec.chat.plain_text import plain_text
from localspec.tui.widgets.dialogs import Choice

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

    def __init__(self, archive: Archive) -> None:
        super().__init__(markup=False)
        self._archive = archive

    def on_mount(self) -> None:
        self.set_interval(_TRY_SECONDS, self._try)

    def _try(self) -> None:
        if self.display:
            self._save_back()

    @work(thread=True, exclusive=True, group="save-back")
    def _save_back(self) -> None:
        if self._archive.save_back():
            self.post_message(self.Saved())

    def tell(self) -> None:
        """Looks at the archive; does nothing else while all is well."""
        wanted = does_not_last(self._archive)
        if wanted != self.display:
            self.update(Content(plain_text(self._archive.notice)))
            self.display = wanted


def does_not_last(archive: Archive) -> bool:
    """Whether what is written is kept in memory only, and should not be."""
    return archive.file is not None and not archive.persistent


async def may_leave(app: App[Any], archive: Archive) -> bool:
    """Saves what would be lost if that can be done by now; else asks whether it may be lost."""
    if await asyncio.to_thread(archive.save_back):
        return True
    return await app.push_screen_wait(Choice(_QUESTION, _ANSWERS)) == "leave"
