"""`localspec tune`: finds faster settings for a pair on this machine, and stores them if they are surely faster."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.options import add_model_options, check_comparison, engine_settings, take_target
from localspec.cli.parser import add_temperatures, whole
from localspec.errors import UsageError
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.checks.compare import Ratio, Task
    from localspec.checks.tune import TuneReport
    from localspec.runtime.kept.tuning import Tuning

_DESCRIPTION = """\
Tries threads, kernels, number formats of the cache, n-gram lengths and draft lengths, each against the best so far:
both answer the same prompts, taking turns, each in a process of its own. What is found is measured again against the
defaults on other prompts; if it is surely faster there, it is stored, and every later command uses it for this pair on
this machine. If not, the defaults stay. Options given here are not tuned; an option given to a later command wins.

The text of an answer depends on threads, kernels and the cache's format (the last bits of its logits do), so an answer
may read differently after tuning; speculation still never changes it. --no-tune leaves what is stored aside.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    from localspec.checks.tune import ASPECTS

    parser.description, parser.formatter_class = _DESCRIPTION, argparse.RawDescriptionHelpFormatter
    parser.add_argument("pair", nargs="?", metavar="PAIR", help="pair, model or GGUF file; default: the chosen one")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(ASPECTS)}; default: all")
    parser.add_argument("--prompts", type=typed, metavar="FILE", help="your workload: JSON lines, prompt or messages")
    parser.add_argument(
        "--limit", type=whole(2), default=12, metavar="N", help="prompts, half to search with; default: 12"
    )
    add_temperatures(parser, "of the answers; default: 0.8", default=0.8)
    parser.add_argument("--max-tokens", type=whole(1), default=64, metavar="N", help="longest answer; default: 64")
    parser.add_argument("--rounds", type=whole(2), default=4, metavar="N", help="answers a prompt and side; default: 4")
    parser.add_argument("--minutes", type=float, default=15.0, metavar="N", help="time to search; default: 15")
    parser.add_argument("--dry-run", action="store_true", help="show what was found, store nothing")
    parser.add_argument("--forget", action="store_true", help="remove what is stored for the pair")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 130 when interrupted; nothing is stored then."""
    from localspec.drafters.heads.loading import apart
    from localspec.models.installed.installed import find, find_one

    take_target(options, options.pair, "PAIR")
    target, draft = find(options.target)
    draft = draft if options.draft is None else find_one(options.draft)
    draft, heads = apart(draft, [find_one(head) for head in options.heads or ()])
    if options.forget:
        return _forget(target, draft)
    return _tune(options, target, draft, heads)


def _forget(target: Path, draft: Path | None) -> int:
    from localspec.runtime.kept import tuning

    gone = tuning.forget(target, draft)
    print(f"{'Removed' if gone else 'Nothing is stored of'} the tuning of {target.name}.", file=sys.stderr)
    return 0


def _tune(options: argparse.Namespace, target: Path, draft: Path | None, heads: tuple[Path, ...]) -> int:
    from localspec.checks.tune import TunePlan, TuneReport, tune
    from localspec.cli.output import load_progress
    from localspec.cli.places import fitted
    from localspec.config import EngineSettings
    from localspec.runtime.kept import tuning

    check_comparison(options)
    settings = engine_settings(options)
    if options.fit:
        settings |= fitted(settings)
    base = {name: value for name, value in settings.items() if name not in ("target", "draft", "tuned")}
    base["heads"] = heads
    EngineSettings(target, draft, **base)  # refuse bad values before anything is loaded
    search, check = _questions(options)
    plan = TunePlan(_aspects(options.only), options.rounds, options.minutes)
    report = TuneReport()
    try:
        with load_progress() as progress:
            tune(target, draft, base, search, check, plan, progress, report)
    except KeyboardInterrupt:
        _print(options, report, None, "interrupted; nothing was stored")
        return 130
    found = _tuning(options, report, base)
    if found is None:
        _print(options, report, None, "")
    elif options.dry_run:
        _print(options, report, found, "not stored (--dry-run)")
    else:
        fault = tuning.write(target, draft, found)
        _print(options, report, found, f"not stored, nothing can be kept: {fault}" if fault else "stored")
        return 1 if fault else 0
    return 0


def _aspects(text: str | None) -> tuple[str, ...]:
    from localspec.checks.tune import ASPECTS

    if text is None:
        return ASPECTS
    wanted = tuple(text.split(","))
    for name in wanted:
        if name not in ASPECTS:
            raise UsageError(f"--only names {name!r}; there are: {', '.join(ASPECTS)}.")
    return wanted


def _questions(options: argparse.Namespace) -> tuple[list[Task], list[Task]]:
    """Every other prompt to search with, the rest to check with."""
    from localspec.checks.prompts import load_prompts
    from localspec.checks.tune import questions

    if not options.minutes > 0:
        raise UsageError(f"--minutes is {options.minutes:g}; it must be above 0.")
    prompts = load_prompts(options.prompts)
    if len(prompts) < 2:
        raise UsageError(f"{options.prompts} has one prompt; tuning needs two or more, to check with others.")
    step = max(1, len(prompts) // options.limit)
    found = questions(prompts[::step][: options.limit], options.temperature, options.max_tokens)
    return found[::2], found[1::2]


def _tuning(options: argparse.Namespace, report: TuneReport, base: dict[str, Any]) -> Tuning | None:
    """What is to be stored; None = nothing that is surely faster."""
    from localspec.runtime.kept.tuning import Tuning

    if not report.sure or report.gain is None:
        return None
    prompts = "the shipped prompts" if options.prompts is None else options.prompts.name
    workload = f"{prompts}, temperature {options.temperature:g}, {options.max_tokens} tokens"
    gain = report.gain
    exact = str(base.get("exact", "auto"))
    return Tuning(report.settings, gain.value, gain.low, gain.high, exact, date.today().isoformat(), workload)


def _print(options: argparse.Namespace, report: TuneReport, found: Tuning | None, end: str) -> None:
    if options.json:
        print(json.dumps(_as_dict(report, found, end)))
        return
    if report.defaults:
        print(f"defaults: {report.defaults['configuration']}, {report.defaults['threads']} threads")
    for trial in report.trials:
        gain = "" if trial.gain is None else f"{_interval(trial.gain)} of the best so far"
        print(
            f"{trial.challenger.words:28} {', '.join(part for part in (gain, _fate(trial.taken, trial.why)) if part)}"
        )
    if not report.finished and end != "interrupted; nothing was stored":
        print("The time was up before everything was tried; --minutes gives more.")
    print(_verdict(report, found))
    if found is not None and set(found.settings) & {"threads", "kernels", "cache"}:
        print("Answers may read differently from now on: the last bits of logits depend on threads, kernels and cache.")
    if end:
        print(end[0].upper() + end[1:] + ".")


def _fate(taken: bool, why: str) -> str:
    return "taken" if taken else why


def _interval(gain: Ratio) -> str:
    return f"{gain.value:.3f}x ({gain.low:.3f} to {gain.high:.3f})"


def _verdict(report: TuneReport, found: Tuning | None) -> str:
    if report.gain is None:
        return "No setting that was tried is faster than the defaults beyond noise; the defaults stay."
    words = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    measured = f"{words}: {_interval(report.gain)} of the defaults on other prompts"
    return f"{measured}." if found is not None else f"{measured}; not surely faster, so the defaults stay."


def _as_dict(report: TuneReport, found: Tuning | None, end: str) -> dict[str, Any]:
    trials = [
        {
            "aspect": trial.challenger.aspect,
            "settings": trial.challenger.changes,
            "gain": None if trial.gain is None else asdict(trial.gain),
            "taken": trial.taken,
            "why": trial.why,
        }
        for trial in report.trials
    ]
    return {
        "defaults": report.defaults,
        "trials": trials,
        "finished": report.finished,
        "settings": report.settings if found is not None else {},
        "gain": None if report.gain is None else asdict(report.gain),
        "outcome": end or "the defaults stay",
    }
