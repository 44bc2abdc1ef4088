"""The open chats, each in its tab, which come back at the next start; and those that are not saved."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual import work
from textual.app import App
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import Static, TabbedContent

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Chat
from localspec.chat.plain_text import plain_text
from localspec.processes import Claim, is_held
from localspec.tui.talk.session import Session
from localspec.tui.widgets.dialogs import ChoiceDialog
from localspec.tui.widgets.pane import ChatPane

# Which chats are open, and which one is in front: a small file beside the archive, written at every change.


@dataclass(frozen=True, slots=True)
class OpenTabs:
    keys: tuple[str, ...] = ()  # in the order of the tabs
    front: str = ""

    @classmethod
    def load(cls, archive: Archive) -> OpenTabs:
        """As they were when last written; none if there is no such file, or if it cannot be understood."""
        file = _file(archive)
        with suppress(OSError, ValueError):
            saved = json.loads(paths.read_own(file)) if file is not None else None
            if isinstance(saved, dict) and isinstance(saved.get("tabs"), list):
                return cls(tuple(map(str, saved["tabs"])), str(saved.get("front", "")))
        return cls()

    def save(self, archive: Archive) -> None:
        """Writes the file, whole or not at all. Trouble is not said: all that is lost is which tabs were open."""
        file = _file(archive)
        if file is None or not archive.persistent:
            return
        with suppress(OSError):
            paths.write_whole(file, json.dumps({"tabs": self.keys, "front": self.front}) + "\n")

    def chats(self, archive: Archive) -> list[Chat]:
        """Those that are still there and have something in them, in the order of the tabs."""
        found = (archive.chat_of_key(key) for key in dict.fromkeys(self.keys))
        return [chat for chat in found if chat is not None and (chat.messages or chat.unsent)]


def chats_at_start(archive: Archive, resume: bool, tabs: bool) -> tuple[list[Chat], Chat | None]:
    """(chats whose tabs come back, the one of them in front; None = a new chat after them). `resume`: an earlier chat
    may be in front. `tabs`: tabs come back at all."""
    remembered = OpenTabs.load(archive)
    chats = remembered.chats(archive) if tabs else []
    if not resume:
        return chats, None
    front = next((chat for chat in chats if chat.key == remembered.front), chats[-1] if chats else archive.last_chat())
    return chats or ([] if front is None else [front]), front


def _file(archive: Archive) -> Path | None:
    return None if archive.file is None else archive.file.with_name("tabs.json")


class ChatTabs(TabbedContent):
    """Tabs are hidden while there is only one."""

    def __init__(self, session: Session) -> None:
        super().__init__(id="chats")
        self._session = session
        self.panes: list[ChatPane] = []  # kept, not looked up: a query goes through every message. Others only read it.
        self.settled = False  # the tabs of last time are there; until then what is open is not written down
        self._claim: Claim | None = None  # on the file of open tabs; None = it is another window's, or there is none

    def claim(self, archive: Archive) -> bool:
        """Takes the file of open tabs for this window; False = another window has it, and this one leaves it alone."""
        self.settled = False
        file = _file(archive)
        if file is not None and self._claim is None:
            place = file.with_suffix(".window")
            with suppress(OSError):  # a folder that cannot be written has no tabs to overwrite
                if is_held(place):
                    return False
                self._claim = Claim(place)
        return True

    def on_unmount(self) -> None:
        if self._claim is not None:
            self._claim.release()

    @property
    def front(self) -> ChatPane | None:
        """The chat in front; None = there is none yet."""
        return self.active_pane if isinstance(self.active_pane, ChatPane) else None

    async def add(self, pane: ChatPane, before: ChatPane | None = None) -> None:
        await self.add_pane(pane, before=before)
        self.panes.insert(len(self.panes) if before is None else self.panes.index(before), pane)
        self.set_class(len(self.panes) < 2, "single")

    async def drop(self, pane: ChatPane) -> None:
        self.panes.remove(pane)
        await self.remove_pane(str(pane.id))
        self.set_class(len(self.panes) < 2, "single")
        self.remember()

    @work(group="tabs")
    async def bring_back(self, chats: list[Chat], front: ChatPane) -> None:
        """Tabs of chats on both sides of the one in front; their messages are drawn when they are looked at."""
        before: ChatPane | None = front
        for chat in chats:
            if chat.id == front.chat_id:
                before = None
            elif all(pane.chat_id != chat.id for pane in self.panes):
                await self.add(ChatPane(self._session, chat, asleep=True), before if before in self.panes else None)
        self.settled = True
        self.remember()

    def remember(self) -> None:
        if self.settled and self._claim is not None and self.front is not None:
            OpenTabs(tuple(pane.key for pane in self.panes), self.front.key).save(self._session.archive)


_TRY_SECONDS = 5.0
"""How often it is tried to save what is in memory only: a person who has made room does not wait long."""
_QUESTION = "The chats of this session are kept in memory only, and are lost when localspec ends. Leave?"
_ANSWERS = (
    ("stay", "Stay", "/export FILE writes the chat in front to a file; it may be on another disk."),
    ("leave", "Leave", "What was written since then is lost."),
)


class Unsaved(Static):
    """Shown as long as what is written does not last, with the reason."""

    class Saved(TextualMessage):
        """All that was in memory only lasts now."""

    def __init__(self, archive: Archive) -> None:
        super().__init__(markup=False)
        self._archive = archive

    def on_mount(self) -> None:
        self.set_interval(_TRY_SECONDS, lambda: self._save_back() if self.display else None)

    @work(exclusive=True, group="save-back")
    async def _save_back(self) -> None:
        if await asyncio.to_thread(self._archive.save_back):
            self.post_message(self.Saved())

    def tell(self) -> None:
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
    return await app.push_screen_wait(ChoiceDialog(_QUESTION, _ANSWERS)) == "leave"
