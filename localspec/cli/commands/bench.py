"""`localspec bench`: `run` measures speculation on real prompts, `passes` what a pass costs.

Without one of these words, `localspec bench ...` is `localspec bench run ...` (`localspec.cli.WITH_DEFAULT`).
"""

from __future__ import annotations

import argparse

from localspec.cli.commands import bench_passes, bench_run


def add_options(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", title="benchmarks; default: run")
    for name, (module, line) in _BENCHMARKS.items():
        one = benchmarks.add_parser(
            name,
            help=line,
            description=module.DESCRIPTION,
        )
        module.add_options(one)


def run(options: argparse.Namespace) -> int:
    module, _ = _BENCHMARKS[options.benchmark]
    return int(module.run(options))


_BENCHMARKS = {
    "run": (bench_run, "speed, acceptance and texts of real prompts, plain and speculative taking turns"),
    "passes": (bench_passes, "time of passes by width, and of prefill"),
}
