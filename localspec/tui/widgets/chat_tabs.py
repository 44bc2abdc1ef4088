"""The open chats, each in its tab. Which ones are open is written down, so that they come back at the next start."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from textual import work
from textual.widgets import TabbedContent

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Chat
from localspec.claim import Claim, is_held
from localspec.tui.talk.session import Session
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
    """(chats whose tabs come back, the one of them in front; None = a new chat after them).

    `resume`: an earlier chat may be in front. `tabs`: tabs come back at all.
    """
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
        self._panes: list[ChatPane] = []  # kept, not looked up: a query goes through every block of every message
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
    def panes(self) -> list[ChatPane]:
        return list(self._panes)

    @property
    def front(self) -> ChatPane | None:
        """The chat in front; None = there is none yet."""
        return self.active_pane if isinstance(self.active_pane, ChatPane) else None

    async def add(self, pane: ChatPane, before: ChatPane | None = None) -> None:
        await self.add_pane(pane, before=before)
        self._panes.insert(len(self._panes) if before is None else self._panes.index(before), pane)
        self.set_class(len(self._panes) < 2, "single")

    async def drop(self, pane: ChatPane) -> None:
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
                await self.add(ChatPane(self._session, chat, asleep=True), before if before in self._panes else None)
        self.settled = True
        self.remember()

    def remember(self) -> None:
        if self.settled and self._claim is not None and self.front is not None:
            OpenTabs(tuple(pane.key for pane in self._panes), self.front.key).save(self._session.archive)
