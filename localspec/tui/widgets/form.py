"""A form made of settings: a row for each, what it is below it; and the fields that Textual has none of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Static

from localspec.settings import Setting


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
        """What is set and differs from the default.

        Raises:
            UsageError: something is no value; says which.
        """
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
