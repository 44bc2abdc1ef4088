"""The parser of every command: errors in words, the nearest name for a mistyped one, and a help of two lengths.

Options made of declared settings, and numbers with the range that makes sense: what is outside is said at once.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar

from localspec.errors import UsageError
from localspec.settings import MOST as MOST
from localspec.settings import Setting, settings_of

_Number = TypeVar("_Number", int, float)


def add_setting(group: argparse._ActionsContainer, row: Setting, text: str = "", **more: Any) -> None:
    """A setting's option; None = not given. `text` is its help if not the declared one, `more` is argparse's."""
    text = text or row.declared.help or f"{row.clause}; default: {row.show(row.default)}"
    if row.kind is bool:
        more["action"] = "store_false" if row.default else "store_true"
    elif row.choices and not row.declared.symbol:
        more["choices"] = list(row.choices)
    else:
        more["metavar"] = row.symbol
    if row.kind in (int, float):
        more["type"] = reader(row)
    group.add_argument(*row.flags, dest=row.name, help=text.replace("%", "%%"), **more)


def add_engine_settings(group: argparse._ActionsContainer, *names: str, text: str = "") -> None:
    """Options of settings of the engine, by their names; `text` as for `add_setting`."""
    from localspec.config import EngineSettings

    rows = {row.name: row for row in settings_of(EngineSettings)}
    for name in names:
        add_setting(group, rows[name], text)


def add_temperatures(group: argparse._ActionsContainer, text: str, **more: Any) -> None:
    """The temperature of answers, in the range that is declared of it; arguments as for `add_setting`."""
    from localspec.options import SamplingParams

    (row,) = (row for row in settings_of(SamplingParams) if row.name == "temperature")
    add_setting(group, row, text, **more)


MOST_PORT = 65_535
MOST_SECONDS = 1e9  # longest wait in seconds, some 30 years; far longer ones overflow the clocks of the system
_LONGEST_SHOWN = 40  # letters of a value that a message repeats at most


def whole(least: float = -MOST, most: float = MOST) -> Callable[[str], int]:
    """A reader of whole numbers for argparse's `type`; its message goes on after the option's name."""
    return partial(_read, int, "a whole number", least, most)


def real(least: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """A reader of finite numbers, for argparse's `type`; raises as that of `whole`."""
    return partial(_read, float, "a number", least, most)


def _read(kind: type[_Number], words: str, least: float, most: float, text: str) -> _Number:
    """A number; else the message, in which a bound that only the number format sets is named to those who go beyond."""
    try:
        value = kind(text)
        if least <= value <= most and (kind is int or math.isfinite(value)):
            return value
        too_large = value > most
    except ValueError:
        too_large = False
    low, high = abs(least) < MOST, abs(most) < math.inf and (most != MOST or too_large)
    if low:
        words += f" between {least:,} and {most:,}" if high else f" of {least:,} or more"
    shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
    try:
        float(text)
    except ValueError:
        shown = repr(shown)
    raise argparse.ArgumentTypeError(f"is {shown.strip()}; it must be {words}")


def reader(row: Setting) -> Callable[[str], Any]:
    """A reader of a setting that is declared, for argparse's `type`; raises as `whole` and `real` do."""
    least, most = row.declared.least, row.declared.most
    if row.kind is float:
        return real(least, most)
    read = whole(least, most)

    def read_either(text: str) -> int | Literal["auto"]:
        if text == "auto":
            return "auto"
        try:
            return read(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error}, or auto") from None

    return read_either if "auto" in row.words else read


def add_whole(
    group: argparse._ActionsContainer, name: str, text: str, default: int | None, least: float = 1, most: float = MOST
) -> None:
    """An option of a whole number whose help says its default."""
    text = text if default is None else f"{text}; default: {default}"
    group.add_argument(name, type=whole(least, most), default=default, metavar="N", help=text)


def numbers(name: str, text: str, kind: type[_Number]) -> tuple[_Number, ...]:
    """Numbers between commas, each once, in the order given."""
    try:
        return tuple(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        form, such = ("whole numbers", "1,2,4") if kind is int else ("numbers", "0,0.7,1")
        raise UsageError(f"--{name} is {text!r}; it must be {form} with commas between, such as {such}.") from None


def words(text: str) -> tuple[str, ...]:
    """Words between commas, each once, in the order given."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


SHARED = ("models", "speculation", "sampling")
"""Titles of the groups of options that many commands share; short help shows the most used of them only."""
MOST_USED = frozenset(("target", "draft", "context", "drafter", "temperature", "seed", "max_tokens"))
"""What short help shows of the shared options, by their name in the parsed options."""
_LIKENESS = 0.7
"""How alike (difflib's ratio, 0 to 1) a mistyped word and a suggestion are at least: a letter or two apart."""
_MOST_MEANT = 3  # suggestions at most


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question after the known words that are most like a mistyped one, or ""."""
    close = get_close_matches(word.lower(), sorted({*known}), _MOST_MEANT, _LIKENESS)
    return f"Did you mean {' or '.join(close)}?" if close else ""


class CommandParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `UsageError`, one sentence, for what it cannot read.

    Options may stand before, between and after the words; after `--` everything is a word. Unique prefixes of options
    are taken for them, as argparse does. `--help` leaves out the shared options that few need; `--help-all` shows them.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **settings})
        self.register("type", int, whole())  # so that `type=int` is refused in words, too
        self.register("type", float, real())
        self._help_all = self.add_argument("--help-all", action=_HelpAll, help="show every option and exit")
        self._takes_words = True

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Reads the options first, wherever they stand, and then the words, which so need not stand together.

        (argparse takes words only where they stand together, and its `parse_intermixed_args` knows no subcommands.)
        """
        given = list(sys.argv[1:] if args is None else args)
        words = self._get_positional_actions()
        for action in words:
            if isinstance(action, argparse._SubParsersAction):  # the words after a command's name are its own
                if given and given[0].startswith("-") and given[0] not in self._option_string_actions:
                    place = next((index for index, word in enumerate(given) if word in action.choices), 0)
                    given.insert(0, given.pop(place))
                return super().parse_known_args(given, namespace)
        cut = given.index("--") if "--" in given else len(given)
        self._takes_words = False
        try:
            with _not_required(words):
                namespace, rest = super().parse_known_args(given[:cut], namespace)
        finally:
            self._takes_words = True
        with _not_required(self._get_optional_actions()):
            return super().parse_known_args([*rest, *given[cut:]], namespace)

    def _get_positional_actions(self) -> list[argparse.Action]:
        return super()._get_positional_actions() if self._takes_words else []

    def error(self, message: str) -> NoReturn:
        """Turns argparse's message into a sentence, and raises it as a UsageError."""
        sentence, hint = f"{message[:1].upper()}{message[1:]}.", f"`{self.prog} --help` says what there is."
        if found := re.match(r"unrecognized arguments: (\S+)", message):
            sentence = f"{found[1]!r} is one word too many."
            if found[1].startswith("-"):
                name = found[1].partition("=")[0]
                sentence, hint = f"There is no option {name} here.", did_you_mean(name, self._option_names())
        elif found := re.match(r"ambiguous option: (\S+) could match (.+)", message):
            sentence, hint = f"{found[1]} is short for several options: {found[2]}.", "Type more of its name."
        elif found := re.match(r"the following arguments are required: (.+)", message):
            sentence = f"{found[1]} is missing."
        elif found := re.match(r"argument (.+?): (.+)", message, re.DOTALL):
            names, what, hint = found[1].split("/"), found[2], ""
            name = next((name for name in names if name.startswith("--")), names[-1])
            sentence = f"{name}: {what}."
            if what.startswith("is "):  # one of ours
                what, _, hint = what.partition(". ")
                sentence = f"{name} {what}."
            elif what.startswith("expected"):
                sentence = f"{name} needs a value."
            elif found := re.match(r"not allowed with argument (.+)", what):
                sentence, hint = f"{name} and {found[1]} do not go together.", "Leave one of the two out."
            elif found := re.match(r"ignored explicit argument (.+)", what):
                sentence = f"{name} takes no value, and {found[1]} was given."
        raise UsageError(sentence, hint)

    def format_help(self) -> str:
        """The short help, and how many options `--help-all` shows besides."""
        shared = [group for group in self._action_groups if group.title in SHARED]
        left_out = [action for group in shared for action in group._group_actions if action.dest not in MOST_USED]
        kept = [(action, action.help) for action in left_out or [self._help_all]]
        try:
            for action, _ in kept:
                action.help = argparse.SUPPRESS
            text = super().format_help()
        finally:
            for action, line in kept:
                action.help = line
        more = f"\n\n{len(left_out)} more options: {self.prog} --help-all\n"
        return f"{text.rstrip()}{more}" if left_out else text

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            meant = did_you_mean(str(value), known)
            allowed = f"is {value!r}; it must be one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"{allowed}. {meant}" if meant else allowed)

    def _option_names(self) -> Iterator[str]:
        """Long names of the options, those of commands below included."""
        for action in self._actions:
            yield from (name for name in action.option_strings if name.startswith("--"))
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._option_names()


class _HelpAll(argparse.Action):
    """`--help-all`: prints every option and exits."""

    def __init__(self, option_strings: list[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(argparse.ArgumentParser.format_help(parser), end="")
        parser.exit()


@contextmanager
def _not_required(actions: list[argparse.Action]) -> Iterator[None]:
    """While another part of the command line is read, none of these is missed."""
    required = [action for action in actions if action.required]
    for action in required:
        action.required = False
    try:
        yield
    finally:
        for action in required:
            action.required = True
