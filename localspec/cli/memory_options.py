"""Options of commands that plan memory, and the settings that they turn into."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from localspec.cli.setting import add_engine_settings

if TYPE_CHECKING:
    from localspec.models.memory.fit import FitSettings


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """How the models would run."""
    add_engine_settings(parser, "context", "slots")
    parser.add_argument("--cache-type", default="f16", metavar="TYPE", help="of keys and values: f16 (default), q8_0")
    add_engine_settings(parser, "gpu_layers", "cpu_moe")


def fit_settings(options: argparse.Namespace) -> FitSettings:
    """Settings of a memory plan from parsed options."""
    from localspec.models.memory.fit import FitSettings

    names = ("context", "slots", "gpu_layers", "cpu_moe")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return FitSettings(type_k=options.cache_type, type_v=options.cache_type, **given)
