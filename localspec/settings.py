"""Settings declared once: a field of a dataclass says its type, default, range, sentence, and what others call it.

`declared` stands where a field's default would. Options of the command line, fields of the HTTP APIs, the chat's forms,
checks of values and the tables of the pages are made of what `settings_of` reads back.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from localspec.errors import UsageError

MOST = 2**31 - 1  # largest whole number that llama.cpp's int32 fields hold
_KEY = "declared"


@dataclass(frozen=True, slots=True)
class Declared:
    """What a declaration says besides type and default."""

    sentence: str = ""  # what it is; "" = the text literal below the field says it
    least: float = -math.inf
    most: float = math.inf
    special: Mapping[float, str] = field(default_factory=dict)  # {value: what it means}, for messages
    help: str = ""  # the words of its option on the command line; "" = its sentence and its default
    symbol: str = ""  # what stands for its value there; "" = N, X, or the choices
    flags: tuple[str, ...] = ()  # what other programs call its option, besides `--name-of-the-field`
    api_name: str = ""  # its name in the HTTP APIs; "" = the field's own
    other_names: tuple[str, ...] = ()  # names that other servers have for it
    stands_for: Mapping[int, int | None] = field(default_factory=dict)  # {value that the HTTP APIs take besides: ours}
    openai: bool = False  # whether OpenAI's API has it, as against llama-server's and vLLM's alone


def declared(default: Any, sentence: str = "", least: float = -math.inf, most: float = math.inf, **more: Any) -> Any:
    """A field of a frozen dataclass, with what its declaration says; `more` are fields of `Declared`."""
    return field(default=default, metadata={_KEY: Declared(sentence, least, most, **more)})


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: type  # bool, int, float, str or tuple (of texts)
    optional: bool  # None is a value, too: an empty input
    choices: tuple[str, ...]  # the only values, when there are few; else ()
    default: Any
    owner: type  # the dataclass
    words: tuple[str, ...] = ()  # what may stand in place of a number, such as `auto`
    declared: Declared = Declared()

    @property
    def doc(self) -> str:
        return self.declared.sentence or _docs(self.owner).get(self.name, "")

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")

    @property
    def flags(self) -> tuple[str, ...]:
        """Its option on the command line, which turns off what is on, and what other programs call that."""
        own = self.name.replace("_", "-")
        return (f"--no-{own}" if self.kind is bool and self.default else f"--{own}", *self.declared.flags)

    @property
    def symbol(self) -> str:
        """What stands for its value in a help text."""
        return self.declared.symbol or ("N" if self.kind is int else "X")

    @property
    def api_name(self) -> str:
        return self.declared.api_name or self.name

    @property
    def clause(self) -> str:
        """The sentence as it goes on after a colon."""
        text = self.doc.removesuffix(".")
        return text if text[1:2].isupper() else text[:1].lower() + text[1:]

    @property
    def allowed(self) -> str:
        one = self.declared
        if one.least > -MOST and one.most != MOST and one.most < math.inf:
            return f"between {_number(one.least)} and {_number(one.most)}"
        special = [f"{_number(value)} ({words})" for value, words in sorted(one.special.items())]
        return " or ".join((", ".join(special or [_number(one.least)]), "more"))

    def check(self, value: Any) -> None:
        """Raises UsageError: the value is of another kind, or out of the range that is declared."""
        if value is None and self.optional:
            return
        if self.kind is int and type(value) is not int:
            raise UsageError(f"{self.name} is {value!r}; it must be a whole number.")
        self.check_range(value)

    def check_range(self, value: float) -> None:
        if not self.declared.least <= value <= self.declared.most:
            raise UsageError(f"{self.name} is {value}; it must be {self.allowed}.")

    def meant(self, value: Any) -> Any:
        """What a value in the HTTP APIs stands for."""
        return self.declared.stands_for.get(value, value)

    def show(self, value: Any) -> str:
        """A value as people type it."""
        if value is None:
            return ""
        if self.kind is tuple:
            return ", ".join(str(part) for part in value)
        return f"{value:g}" if self.kind is float else str(value)

    def read(self, text: str) -> Any:
        """The value of what people typed. Raises UsageError: it has none."""
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


def check(settings: Any) -> None:
    """Raises UsageError: a number is outside the range that its field declares; NaN is in none. For `__post_init__`."""
    owner: type = type(settings)
    for row in numbers_of(owner):
        value = getattr(settings, row.name)
        if isinstance(value, int | float):
            row.check_range(value)


def _number(value: float) -> str:
    if isinstance(value, int) and value > MOST:
        return f"2^{value.bit_length()} - 1"
    return f"{value:,.10g}"


@lru_cache(maxsize=32)
def settings_of(owner: type) -> tuple[Setting, ...]:
    """The fields of a dataclass that people can set, in order: those of other types are left out."""
    hints, found = get_type_hints(owner), []
    for one in fields(owner):
        kind, optional, choices = _kind(hints[one.name])
        if kind is not None:
            words, choices = (choices, ()) if kind is int else ((), choices)  # words beside a number are no choices
            default, row = None if one.default is MISSING else one.default, one.metadata.get(_KEY, Declared())
            found.append(Setting(one.name, kind, optional, choices, default, owner, words, row))
    return tuple(found)


@lru_cache(maxsize=32)
def numbers_of(owner: type) -> tuple[Setting, ...]:
    """Those of `settings_of` that are numbers with a range."""
    return tuple(row for row in settings_of(owner) if row.kind in (int, float) and row.declared != Declared())


def _kind(hint: Any) -> tuple[type | None, bool, tuple[str, ...]]:
    """(type of the value, may be None, choices); no type = nothing that people can set."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if NoneType in arguments:
            kind, _, choices = _kind(next(part for part in arguments if part is not NoneType))
            return kind, True, choices
        if arguments[0] is int and get_origin(arguments[1]) is Literal:
            return int, False, tuple(str(word) for word in get_args(arguments[1]))
    if origin is Literal:
        return str, False, tuple(str(choice) for choice in arguments)
    if origin is tuple:
        return (tuple if arguments[:1] == (str,) else None), False, ()
    return (hint if hint in (bool, int, float, str) else None), False, ()


@lru_cache(maxsize=32)
def _docs(owner: type) -> dict[str, str]:
    """{field: the text literal below it}, whitespace joined; those of the classes it is made from, too."""
    docs: dict[str, str] = {}
    for base in filter(is_dataclass, reversed(owner.__mro__)):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for pair in zip(tree.body, tree.body[1:], strict=False):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs
