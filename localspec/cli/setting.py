"""Options made of declared settings, and numbers with the range that makes sense: what is outside is said at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, Literal

from localspec.errors import UsageError
from localspec.settings import MOST as MOST
from localspec.settings import Setting, settings_of


def add_setting(group: argparse._ActionsContainer, row: Setting, told: str = "", **more: Any) -> None:
    """The option of a setting: None is what is not given.

    Args:
        row: the setting.
        told: the help, where the command has words of its own for it.
        more: for argparse, such as a default.
    """
    told = told or row.declared.help or f"{row.clause}; default: {row.show(row.default)}"
    if row.kind is bool:
        more["action"] = "store_false" if row.default else "store_true"
    elif row.choices and not row.declared.symbol:
        more["choices"] = list(row.choices)
    else:
        more["metavar"] = row.symbol
    if row.kind in (int, float):
        more["type"] = reader(row)
    group.add_argument(*row.flags, dest=row.name, help=told.replace("%", "%%"), **more)


def add_engine_settings(group: argparse._ActionsContainer, *names: str, told: str = "") -> None:
    """Options of settings of the engine, by their names; `told` as for `add_setting`."""
    from localspec.config import EngineSettings

    rows = {row.name: row for row in settings_of(EngineSettings)}
    for name in names:
        add_setting(group, rows[name], told)


def add_temperatures(group: argparse._ActionsContainer, told: str, **more: Any) -> None:
    """The temperature of answers, in the range that is declared of it; arguments as for `add_setting`."""
    from localspec.sampling import SamplingParams

    (row,) = (row for row in settings_of(SamplingParams) if row.name == "temperature")
    add_setting(group, row, told, **more)


MOST_PORT = 65_535
"""Largest TCP port."""
MOST_SECONDS = 1e9
"""Longest wait in seconds, some 30 years; far longer ones overflow the clocks of the system."""
_LONGEST_SHOWN = 40
"""Letters of a value that a message repeats at most."""


def whole(least: float = -MOST, most: float = MOST) -> Callable[[str], int]:
    """A reader of whole numbers, for argparse's `type`.

    It raises `argparse.ArgumentTypeError` for other texts, whose message goes on after the option's name.
    """

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise _unfit(text, "a whole number", least, most) from None
        if not least <= value <= most:
            raise _unfit(text, "a whole number", least, most, value > most)
        return value

    return read


def real(least: float = -math.inf, most: float = math.inf) -> Callable[[str], float]:
    """A reader of finite numbers, for argparse's `type`; raises as that of `whole`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise _unfit(text, "a number", least, most) from None
        if not (least <= value <= most and math.isfinite(value)):
            raise _unfit(text, "a number", least, most)
        return value

    return read


def auto_or(read: Callable[[str], int]) -> Callable[[str], int | Literal["auto"]]:
    """A reader of `auto`, or of what another one reads, for argparse's `type`; raises as that one."""

    def read_either(text: str) -> int | Literal["auto"]:
        if text == "auto":
            return "auto"
        try:
            return read(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error}, or auto") from None

    return read_either


def reader(row: Setting) -> Callable[[str], Any]:
    """A reader of a setting that is declared, for argparse's `type`; raises as `whole` and `real` do."""
    least, most = row.declared.least, row.declared.most
    if row.kind is float:
        return real(least, most)
    read = whole(least, most)
    return auto_or(read) if "auto" in row.words else read


def _unfit(text: str, kind: str, least: float, most: float, too_large: bool = False) -> argparse.ArgumentTypeError:
    """The message; a bound that only the number format sets is told to those who go beyond it."""
    low, high = abs(least) < MOST, abs(most) < math.inf and (most != MOST or too_large)
    if low and high:
        allowed = f"{kind} between {least:,} and {most:,}"
    elif low:
        allowed = f"{kind} of {least:,} or more"
    else:
        allowed = kind
    return argparse.ArgumentTypeError(f"is {_shown(text)}; it must be {allowed}")


def _shown(text: str) -> str:
    """A value as a message repeats it: bare where it is a number, else in quotes."""
    cut = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
    try:
        float(text)
    except ValueError:
        return repr(cut)
    return cut.strip()


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers between commas, each once, in the order given."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(
            f"--{name} is {text!r}; it must be whole numbers with commas between, such as 1,2,4."
        ) from None


def numbers(name: str, text: str) -> tuple[float, ...]:
    """Numbers between commas, each once, in the order given."""
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--{name} is {text!r}; it must be numbers with commas between, such as 0,0.7,1.") from None


def words(text: str) -> tuple[str, ...]:
    """Words between commas, each once, in the order given."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
