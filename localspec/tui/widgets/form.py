"""A form made from documented settings: a row for each, its doc line below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Select, Static, Switch

from localspec.tui.text.documented import Setting

_UNSET = "default"


class Form(Vertical):
    """`values` reads it back."""

    def __init__(self, settings: Sequence[Setting], values: Mapping[str, Any], prefix: str = "") -> None:
        """`values`: what is set; other settings show their defaults. `prefix`: of the inputs' ids."""
        super().__init__(classes="form")
        self._settings, self._values, self._prefix = settings, values, prefix

    def compose(self) -> ComposeResult:
        for setting in self._settings:
            with Vertical(classes="row"):
                with Horizontal(classes="field"):
                    yield Static(setting.label, markup=False, classes="label")
                    yield self._input(setting)
                yield Static(setting.doc, markup=False, classes="doc")

    def values(self) -> dict[str, Any]:
        """What is set and differs from the default.

        Raises:
            UsageError: something is no value; says which.
        """
        found: dict[str, Any] = {}
        for setting in self._settings:
            value = self._read(setting)
            if value != setting.default:
                found[setting.name] = value
        return found

    def show(self, values: Mapping[str, Any]) -> None:
        """Fills the form."""
        for setting in self._settings:
            value = values.get(setting.name, setting.default)
            widget = self.query_one(f"#{self._input_id(setting)}")
            if isinstance(widget, Switch):
                widget.value = bool(value)
            elif isinstance(widget, Select):
                widget.value = _word(setting, value)
            elif isinstance(widget, Input):
                widget.value = setting.show(value)

    def _input_id(self, setting: Setting) -> str:
        return f"{self._prefix}{setting.name}"

    def _input(self, setting: Setting) -> Widget:
        value = self._values.get(setting.name, setting.default)
        name = self._input_id(setting)
        if setting.kind is bool and not setting.optional:
            return Switch(bool(value), id=name)
        if setting.kind is bool or setting.choices:
            words = [_UNSET] * setting.optional + (list(setting.choices) or ["on", "off"])
            return Select([(word, word) for word in words], value=_word(setting, value), allow_blank=False, id=name)
        return Input(setting.show(value), placeholder=setting.show(setting.default) or _UNSET, id=name, compact=True)

    def _read(self, setting: Setting) -> Any:
        widget = self.query_one(f"#{self._input_id(setting)}")
        if isinstance(widget, Switch):
            return widget.value
        if isinstance(widget, Select):
            word = str(widget.value)
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
