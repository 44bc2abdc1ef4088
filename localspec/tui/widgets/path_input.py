"""A line for a path: completed while it is typed, and taken as terminals paste it when a file is dropped on them."""

from __future__ import annotations

import asyncio
import os
import shlex
from typing import ClassVar
from urllib.parse import unquote

from textual import events
from textual.binding import BindingType
from textual.suggester import Suggester
from textual.widgets import Input

from localspec.paths import typed
from localspec.tui.widgets.bindings import bind


def dropped(text: str) -> str:
    """The path that is meant: terminals put quotes around it, backslashes before blanks, or file:// in front."""
    text = text.strip().split("\n")[0].strip()
    if text.startswith("file://"):
        return unquote("/" + text.removeprefix("file://").partition("/")[2])
    if os.path.exists(typed(text)):
        return text
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[0] if len(words) == 1 else text


def completed(text: str, ending: str) -> str | None:
    """The first file with this ending, or folder, whose path begins as typed; None = there is none, or nothing to add.

    Takes a moment in a large folder: call it from a thread.
    """
    start, slash, name = text.rpartition("/")
    if not text or (not slash and text != "~"):
        start, name = "", text
    try:
        with os.scandir(typed(start + slash or ".")) as entries:
            found = sorted(
                entry.name + "/" * os.path.isdir(entry)
                for entry in entries
                if entry.name.startswith(name)
                and (name or not entry.name.startswith("."))
                and (os.path.isdir(entry) or entry.name.lower().endswith(ending))
            )
    except OSError:
        return None
    return next((start + slash + one for one in found if one != name), None)


class _Paths(Suggester):
    def __init__(self, ending: str) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._ending = ending

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value, self._ending)


class PathInput(Input):
    """Tab takes what is suggested; without a suggestion it goes to the next field."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("path.complete", "tab", "complete", "Complete", "Take the path that is suggested"),
    ]

    def __init__(self, placeholder: str, ending: str, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(placeholder=placeholder, suggester=_Paths(ending), id=id)

    def action_complete(self) -> None:
        if self._suggestion and self._suggestion != self.value:
            self.value = self._suggestion
            self.cursor_position = len(self.value)
        else:
            self.screen.focus_next()

    def _on_paste(self, event: events.Paste) -> None:
        """A dropped file stands for itself: it replaces what was there."""
        path = dropped(event.text)
        if path != event.text or path.startswith("/"):
            event.prevent_default()  # Input's own handler, which Textual calls as well
            event.stop()
            self.value = path
            self.cursor_position = len(path)
