"""Options of commands that plan memory, and the settings that they turn into."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from localspec.cli.number import of_engine
from localspec.cli.options import add_cpu_moe

if TYPE_CHECKING:
    from localspec.models.memory.fit import FitSettings


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """How the models would run."""
    parser.add_argument("--context", type=of_engine("context"), metavar="N", help="tokens a conversation can hold")
    parser.add_argument(
        "--slots", type=of_engine("slots"), default=1, metavar="N", help="requests served at once; default: 1"
    )
    parser.add_argument("--cache-type", default="f16", metavar="TYPE", help="of keys and values: f16 (default), q8_0")
    parser.add_argument(
        "--gpu-layers",
        type=of_engine("gpu_layers"),
        default="auto",
        metavar="N",
        help="layers of the target on the GPU, -1 all; default: auto, as many as fit",
    )
    add_cpu_moe(parser)


def fit_settings(options: argparse.Namespace) -> FitSettings:
    """Settings of a memory plan from parsed options."""
    from localspec.models.memory.fit import FitSettings

    return FitSettings(
        context=options.context,
        slots=options.slots,
        type_k=options.cache_type,
        type_v=options.cache_type,
        gpu_layers=options.gpu_layers,
        cpu_moe=options.cpu_moe,
    )
