"""Options of the command line that are made of settings that are declared."""

from __future__ import annotations

import argparse
from typing import Any

from localspec.cli.number import reader
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
