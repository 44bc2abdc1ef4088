"""Where models are: in a process of their own, which may die, or in that of the program."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.runtime.any_engine import AnyEngine

POSSIBLE = os.name != "nt"
"""Whether this system can have models in a process of their own."""


def add_process(parser: Any) -> None:
    """The option, for a parser or a group of one."""
    parser.add_argument(
        "--process",
        action=argparse.BooleanOptionalAction,
        default=POSSIBLE,
        help="each model in a process of its own, which may die without the program; default: yes (Windows: no)",
    )


def loader(options: argparse.Namespace) -> Callable[..., AnyEngine]:
    """What loads a model where the options say; called as `Engine.load`."""
    if options.process:
        from localspec.runner.engine import EngineApart

        return EngineApart.load
    from localspec.runtime.engine import Engine

    return Engine.load
