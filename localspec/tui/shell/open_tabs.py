"""Which chats are open, and which one is in front: a small file beside the archive, written at every change."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Chat


@dataclass(frozen=True, slots=True)
class OpenTabs:
    """Keys of chats."""

    keys: tuple[str, ...] = ()
    """In the order of the tabs."""
    front: str = ""

    @classmethod
    def load(cls, archive: Archive) -> OpenTabs:
        """As they were when last written; none if there is no such file, or if it cannot be understood."""
        file = _file(archive)
        with suppress(OSError, ValueError):
            saved = json.loads(file.read_text(encoding="utf-8")) if file is not None else None
            if isinstance(saved, dict) and isinstance(saved.get("tabs"), list):
                return cls(tuple(map(str, saved["tabs"])), str(saved.get("front", "")))
        return cls()

    def save(self, archive: Archive) -> None:
        """Writes the file, whole or not at all. Trouble is not said: all that is lost is which tabs were open."""
        file = _file(archive)
        if file is None or not archive.persistent:
            return
        beside = file.with_suffix(f".{os.getpid()}.new")
        try:
            beside.write_text(json.dumps({"tabs": self.keys, "front": self.front}) + "\n", encoding="utf-8")
            beside.replace(file)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def chats(self, archive: Archive) -> list[Chat]:
        """Those that are still there and have something in them, in the order of the tabs."""
        found = (archive.chat_of_key(key) for key in dict.fromkeys(self.keys))
        return [chat for chat in found if chat is not None and (chat.messages or chat.unsent)]


def chats_at_start(archive: Archive, resume: bool, tabs: bool) -> tuple[list[Chat], Chat | None]:
    """(chats whose tabs come back, the one of them in front; None = a new chat after them).

    Args:
        resume: an earlier chat may be in front.
        tabs: tabs come back at all.
    """
    remembered = OpenTabs.load(archive)
    chats = remembered.chats(archive) if tabs else []
    if not resume:
        return chats, None
    front = next((chat for chat in chats if chat.key == remembered.front), chats[-1] if chats else archive.last_chat())
    return chats or ([] if front is None else [front]), front


def _file(archive: Archive) -> Path | None:
    return None if archive.file is None else archive.file.with_name("tabs.json")
