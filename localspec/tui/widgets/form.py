"""Settings that explain themselves, and a form made of them: a row for each, its doc line below."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Input, Static

from localspec.errors import UsageError
from localspec.tui.widgets.pick import Pick
from localspec.tui.widgets.tick import Tick

# Settings that explain themselves: the fields of a dataclass with the doc line below each, as screens show them.


class Setting(NamedTuple):
    """One field of a dataclass."""

    name: str
    kind: type
    """bool, int, float, str or tuple (of texts)."""
    optional: bool
    """None is a value, too: an empty input."""
    choices: tuple[str, ...]
    """The only values, when there are few; else ()."""
    default: Any
    doc: str
    """The field's own doc line."""
    words: tuple[str, ...] = ()
    """What may stand in place of a number, such as `auto`."""

    @property
    def label(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    def show(self, value: Any) -> str:
        """A value as people type it."""
        if value is None:
            return ""
        if self.kind is tuple:
            return ", ".join(str(part) for part in value)
        return f"{value:g}" if self.kind is float else str(value)

    def read(self, text: str) -> Any:
        """The value of what people typed.

        Raises:
            UsageError: it is none.
        """
        text = text.strip()
        if not text:
            return None if self.optional else self.default
        if text in self.words:
            return text
        if self.choices and text not in self.choices:
            raise UsageError(f"{self.label} is {text!r}; it must be one of {', '.join(self.choices)}.")
        if self.kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        try:
            return self.kind(text)
        except ValueError:
            wanted = " or ".join(("a whole number" if self.kind is int else "a number", *self.words))
            raise UsageError(f"{self.label} is {text!r}; it must be {wanted}.") from None


@lru_cache(maxsize=16)
def settings_of(owner: type) -> tuple[Setting, ...]:
    """The fields of a dataclass that a form can show, in order."""
    docs, hints = _docs(owner), get_type_hints(owner)
    found = []
    for field in fields(owner):
        kind, optional, choices = _kind(hints[field.name])
        words: tuple[str, ...] = ()
        if kind is int:  # the words beside a number are no choices
            words, choices = choices, ()
        if kind is not None:
            default = None if field.default is MISSING else field.default
            found.append(Setting(field.name, kind, optional, choices, default, docs.get(field.name, ""), words))
    return tuple(found)


def _kind(hint: Any) -> tuple[type | None, bool, tuple[str, ...]]:
    """(type of the value, may be None, choices); no type = nothing a form can show."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and NoneType in arguments:
        kind, _, choices = _kind(next(part for part in arguments if part is not NoneType))
        return kind, True, choices
    if origin in (Union, UnionType) and arguments[0] is int and get_origin(arguments[1]) is Literal:
        return int, False, tuple(str(word) for word in get_args(arguments[1]))
    if origin is Literal:
        return str, False, tuple(str(choice) for choice in arguments)
    if origin is tuple:
        return (tuple if arguments[:1] == (str,) else None), False, ()
    return (hint if hint in (bool, int, float, str) else None), False, ()


def _docs(owner: type) -> dict[str, str]:
    """{field: the text literal below it}, whitespace joined; those of the classes it is made from, too."""
    docs: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if is_dataclass(base):
            docs |= _own_docs(base)
    return docs


def _own_docs(owner: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for line, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docs[line.target.id] = " ".join(below.value.value.split())
    return docs


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
