"""`localspec bench passes`: what a pass costs here by its width, on our kernels and on llama.cpp's."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from localspec.cli.output import load_progress, print_table
from localspec.cli.parser import whole_numbers

if TYPE_CHECKING:
    from localspec.bench.pass_times import PassReport, PassSettings
    from localspec.gguf import Header

DESCRIPTION = """\
Times passes of several widths (rows checked at once) and the prefill of a prompt, on localspec's own kernels and on
llama.cpp's with and without repacking, taking turns in one run; each number is the quickest of all rounds. GB/s counts
the weights, keys and values a pass must read, GOPS a multiply-add as two; both are also shown as shares of what this
machine can do, measured in the same run. Ctrl-C stops and shows what there is.

The default target is the bundled one. It is so small that it lies in the processor's caches and a pass is mostly
overhead: that shows what splitting passes between two libraries costs, not how fast weights are read. For that, give
the model you use with --target. Each kind of kernels holds its own copy of the weights: three times the model's size.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    numbers = "N,N,..."
    parser.add_argument("--target", metavar="NAME|FILE", help="pair, model or GGUF file; default: the bundled pair's")
    parser.add_argument("--widths", metavar=numbers, help="rows of a pass; default: 1,2,4,8,16,32")
    parser.add_argument("--lengths", metavar=numbers, help="tokens of context; default: 128,3584")
    parser.add_argument("--prefill", type=int, metavar="N", help="tokens of a prompt, 0 for none; default: 512")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads; default: one a physical core")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each kind of kernels; default: 5")
    parser.add_argument("--json", action="store_true", help="everything as JSON on standard output")


def run(options: argparse.Namespace) -> int:
    """Measures and prints; exit code 130 when it was interrupted."""
    settings = _settings(options)  # refuse bad values before a model is loaded
    from localspec.bench.pass_times import as_dict, measure_passes
    from localspec.llama.model import check_text_model
    from localspec.models.installed.installed import find_one

    path = find_one(options.target)
    _warn_of_memory(check_text_model(path), settings)
    with load_progress() as progress:
        report = measure_passes(path, settings, progress)
    if options.json:
        print(json.dumps(as_dict(report)))
    else:
        _print(report)
    return 130 if report.interrupted else 0


def _settings(options: argparse.Namespace) -> PassSettings:
    from localspec.bench.pass_times import PassSettings

    given: dict[str, object] = {
        name: whole_numbers(name, getattr(options, name))
        for name in ("widths", "lengths")
        if getattr(options, name) is not None
    }
    given |= {
        name: getattr(options, name) for name in ("prefill", "threads", "rounds") if getattr(options, name) is not None
    }
    return PassSettings(**given)  # type: ignore[arg-type]


def _warn_of_memory(header: Header, settings: PassSettings) -> None:
    from localspec.bench.pass_times import needed_bytes
    from localspec.llama.exact import wide
    from localspec.machine import ram

    copies = 3 if wide.available() else 2
    needed, free = needed_bytes(header, settings, copies), ram().free_bytes
    if free and needed > free:
        print(
            f"localspec: warning: {copies} copies of {header.path.name} with their caches need {needed / 1e9:.1f} GB,"
            f" but only {free / 1e9:.1f} GB are free. The times may be the disk's.",
            file=sys.stderr,
        )


def _print(report: PassReport) -> None:
    from localspec.bench.pass_times import heading, notes, tables

    print(heading(report))
    for table in tables(report):
        print()
        print_table(table)
    print()
    for line in notes(report):
        print(line)
