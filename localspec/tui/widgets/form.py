"""A form made of settings: a row for each, what it is below it; and the fields that Textual has none of."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Static

from localspec.paths import typed
from localspec.settings import Setting
from localspec.tui.widgets.registry import bind


class Tick(Checkbox):
    """A box that reads without colour, `[x]` or `[ ]`; Enter, Space or a click turns it over."""

    @property
    def _button(self) -> Content:
        """What stands for the state, in place of Textual's sign, whose colour alone tells it."""
        return Content.styled("[x]" if self.value else "[ ]", self.get_visual_style("toggle--button"))


class Pick(Static, can_focus=True):
    """One word of a few, on one line: what Textual's list that opens takes eight widgets for.

    Right, Enter, Space or a click goes to the next word, Left to the one before.
    """

    ALLOW_SELECT = False
    value = reactive("", init=False)
    """The word that is chosen."""

    def __init__(self, words: Sequence[str], value: str, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id, markup=False)
        self._words = tuple(words)
        self.set_reactive(Pick.value, value)

    def render(self) -> Content:
        return Content(f"‹ {self.value} ›")  # noqa: RUF001 - brackets to look at

    def step(self, by: int) -> None:
        """Goes on by so many words; after the last comes the first."""
        self.value = self._words[(self._words.index(self.value) + by) % len(self._words)]

    def key_left(self) -> None:
        self.step(-1)

    def key_right(self) -> None:
        self.step(1)

    def key_enter(self) -> None:
        self.step(1)

    def key_space(self) -> None:
        self.step(1)

    def on_click(self) -> None:
        self.step(1)


_UNSET = "default"


class Row(Static):
    """A setting: its name, beside it the field that holds its value, and below both what it does.

    Name and text are drawn by the row itself: widgets of their own would take most of the time that a form takes.
    """

    def __init__(self, label: str, doc: str, field: Widget) -> None:
        super().__init__(Content.assemble((label, "bold"), "\n", (doc, "$text-muted")), classes="row")
        self._field = field

    def compose(self) -> ComposeResult:
        yield self._field

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """That of the text; the field has no lines of its own."""
        return self.visual.get_height(self.styles.get_rules(), width)


class Form(Vertical):
    """`values` reads it back."""

    def __init__(self, settings: Sequence[Setting], values: Mapping[str, Any], prefix: str = "") -> None:
        """`values`: what is set; other settings show their defaults. `prefix`: of the inputs' ids."""
        super().__init__(classes="form")
        self._prefix = prefix
        self._fields = [(setting, self._field(setting, values)) for setting in settings]
        """What is typed is here, whether it is on the screen yet or not."""

    def compose(self) -> ComposeResult:
        for setting, field in self._fields:
            yield Row(setting.label, setting.doc, field)

    def values(self) -> dict[str, Any]:
        """What is set and differs from the default."""
        found: dict[str, Any] = {}
        for setting, field in self._fields:
            value = _read(setting, field)
            if value != setting.default:
                found[setting.name] = value
        return found

    def show(self, values: Mapping[str, Any]) -> None:
        """Fills the form."""
        for setting, widget in self._fields:
            value = values.get(setting.name, setting.default)
            if isinstance(widget, Tick):
                widget.value = bool(value)
            elif isinstance(widget, Pick):
                widget.value = _word(setting, value)
            elif isinstance(widget, Input):
                widget.value = setting.show(value)

    def _field(self, setting: Setting, values: Mapping[str, Any]) -> Widget:
        value = values.get(setting.name, setting.default)
        name = f"{self._prefix}{setting.name}"
        if setting.kind is bool and not setting.optional:
            return Tick(value=bool(value), id=name, compact=True)
        if setting.kind is bool or setting.choices:
            words = [_UNSET] * setting.optional + (list(setting.choices) or ["on", "off"])
            return Pick(words, _word(setting, value), id=name)
        return Input(setting.show(value), placeholder=setting.show(setting.default) or _UNSET, id=name, compact=True)


def _read(setting: Setting, widget: Widget) -> Any:
    if isinstance(widget, Tick):
        return widget.value
    if isinstance(widget, Pick):
        word = widget.value
        if word == _UNSET:
            return None
        return word == "on" if setting.kind is bool else word
    assert isinstance(widget, Input)
    return setting.read(widget.value)


def _word(setting: Setting, value: Any) -> str:
    if value is None:
        return _UNSET
    if setting.kind is bool:
        return "on" if value else "off"
    return str(value)


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
    """A line for a path, also as terminals paste a file that is dropped on them.

    Tab takes what is suggested; without a suggestion it goes to the next field.
    """

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
