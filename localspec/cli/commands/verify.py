"""`localspec verify`: plain against speculative, byte for byte. Exit code 1 on a fork, or if nothing was drafted."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from localspec.cli.options import add_model_options, check_comparison, load_engine, take_target
from localspec.cli.output import count_bar
from localspec.cli.parser import add_temperatures, reader, whole
from localspec.options import LIMITS
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.checks.verify import Report, Setting


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", nargs="?", metavar="PAIR", help="pair, model or GGUF file; default: the chosen one")
    parser.add_argument("--prompts", type=typed, metavar="FILE", help="JSON lines with prompt or messages")
    parser.add_argument("--limit", type=whole(1), metavar="N", help="only N prompts, spread over the file")
    add_temperatures(parser, "repeatable; default: 0, 0.7 and 1", action="append")
    parser.add_argument(
        "--max-tokens", type=whole(1), default=64, metavar="N", help="longest answer a turn; default: 64"
    )
    parser.add_argument(
        "--seed", type=reader(LIMITS["seed"]), default=1, metavar="N", help="of the first prompt; default: 1"
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    add_model_options(parser)
    parser.set_defaults(exact="strict")


def run(options: argparse.Namespace) -> int:
    from localspec.checks.prompts import load_prompts
    from localspec.checks.verify import Report, verify

    check_comparison(options)
    take_target(options, options.pair, "PAIR")
    prompts = load_prompts(options.prompts)
    if options.limit is not None:
        prompts = prompts[:: max(1, len(prompts) // options.limit)][: options.limit]
    temperatures = options.temperature or [0.0, 0.7, 1.0]
    chosen = _chosen_setting(options)
    longest = max(7, options.max_draft_tokens or 0)
    branches = options.branches or (2 if chosen is None else 1)
    drafter = "auto" if chosen is None else chosen.drafter
    more: dict[str, Any] = {"drafter": drafter, "max_draft_tokens": longest, "branches": branches}
    settings, report, interrupted = None if chosen is None else [chosen], Report(), False
    given = {"max_tokens": options.max_tokens, "seed": options.seed, "report": report}
    with load_engine(options, **more) as engine:
        try:
            with count_bar() as progress:
                verify(engine, prompts, temperatures, settings, progress=progress, **given)
        except KeyboardInterrupt:
            if not report.runs:
                raise
            interrupted = True
            print("Interrupted; this was found until then:", file=sys.stderr)
        exact = engine.loaded.exactness
    _print(options, report, exact)
    return 130 if interrupted else 1 if report.forks or not report.drafted else 0


def _chosen_setting(options: argparse.Namespace) -> Setting | None:
    """One setting, when the options name a drafter; None = all."""
    from localspec.checks.verify import Setting
    from localspec.drafters import plugin

    if options.drafter is None:
        return None
    plugin.check_name(options.drafter)
    length = 4 if options.max_draft_tokens is None else options.max_draft_tokens
    return Setting(options.drafter, length, options.branches or 1)


def _print(options: argparse.Namespace, report: Report, exact: str) -> None:
    if options.json:
        print(json.dumps(report.as_dict() | {"exact": exact}))
        return
    print(f"{'setting':24} {'runs':>6} {'tokens':>8} {'drafted':>8} {'accepted':>8} {'forks':>6}")
    for setting, tally in report.by_setting.items():
        row = f"{tally.runs:6d} {tally.tokens:8d} {tally.drafted:8d} {tally.accepted:8d} {len(tally.forks):6d}"
        print(f"{setting!s:24} {row}")
    print(f"passes: {exact}")
    for fork in report.forks:
        print(fork)
    if report.too_long:
        print(f"{report.too_long} prompts are longer than the context and were left out. --context N holds more.")
    verdict = "byte-equal" if not report.forks else f"{len(report.forks)} forks"
    if not report.drafted:
        verdict += ", but nothing was drafted, so nothing was tested"
    print(f"{report.runs} runs, {report.tokens} tokens: {verdict}.")
