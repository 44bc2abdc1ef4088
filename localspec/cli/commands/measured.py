"""`localspec verify`, `tune` and `doctor`: equal texts, faster settings, and the state of this installation."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.checks import ASPECTS
from localspec.cli import shared
from localspec.cli.output import count_bar, load_progress
from localspec.cli.parser import add_temperatures, add_whole, reader
from localspec.config import EngineSettings
from localspec.errors import UsageError
from localspec.options import LIMITS
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.checks.compare import Ratio, Task
    from localspec.checks.gain import TuneReport
    from localspec.checks.verify import Report
    from localspec.runtime.kept.tuning import Tuning


def add_options_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", nargs="?", metavar="PAIR", help="pair, model or GGUF file; default: the chosen one")
    parser.add_argument("--prompts", type=typed, metavar="FILE", help="JSON lines with prompt or messages")
    add_whole(parser, "--limit", "only N prompts, spread over the file", None)
    add_temperatures(parser, "repeatable; default: 0, 0.7 and 1", action="append")
    add_whole(parser, "--max-tokens", "longest answer a turn", 64)
    seed = reader(LIMITS["seed"])
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="of the first prompt; default: 1")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    shared.add_model_options(parser)
    parser.set_defaults(exact="strict")


def run_verify(options: argparse.Namespace) -> int:
    from localspec.checks.prompts import load_prompts
    from localspec.checks.verify import DraftSetting, Report, verify
    from localspec.drafters import plugin

    shared.check_comparison(options)
    shared.take_target(options, options.pair, "PAIR")
    prompts = load_prompts(options.prompts)
    if options.limit is not None:
        prompts = prompts[:: max(1, len(prompts) // options.limit)][: options.limit]
    temperatures = options.temperature or [0.0, 0.7, 1.0]
    chosen = None  # all settings, where the options name no drafter
    if options.drafter is not None:
        plugin.check_name(options.drafter)
        length = 4 if options.max_draft_tokens is None else options.max_draft_tokens
        chosen = DraftSetting(options.drafter, length, options.branches or 1)
    longest = max(7, options.max_draft_tokens or 0)
    branches = options.branches or (2 if chosen is None else 1)
    drafter = "auto" if chosen is None else chosen.drafter
    more: dict[str, Any] = {"drafter": drafter, "max_draft_tokens": longest, "branches": branches}
    settings, report, interrupted = None if chosen is None else [chosen], Report(), False
    given = {"max_tokens": options.max_tokens, "seed": options.seed, "report": report}
    with shared.load_engine(options, **more) as engine:
        try:
            with count_bar() as progress:
                verify(engine, prompts, temperatures, settings, progress=progress, **given)
        except KeyboardInterrupt:
            if not report.runs:
                raise
            interrupted = True
            print("Interrupted; this was found until then:", file=sys.stderr)
        exact = engine.loaded.exactness
    _print_verified(options, report, exact)
    return 130 if interrupted else 1 if report.forks or not report.drafted else 0


def _print_verified(options: argparse.Namespace, report: Report, exact: str) -> None:
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


_TUNE = """\
Tries threads, kernels, number formats of the cache, n-gram lengths and draft lengths, each against the best so far:
both answer the same prompts, taking turns, each in a process of its own. What is found is measured again against the
defaults on other prompts; if it is surely faster there, it is stored, and every later command uses it for this pair on
this machine. If not, the defaults stay. Options given here are not tuned; an option given to a later command wins.

The text of an answer depends on threads, kernels and the cache's format (the last bits of its logits do), so an answer
may read differently after tuning; speculation still never changes it. --no-tune leaves what is stored aside.
"""


def add_options_tune(parser: argparse.ArgumentParser) -> None:
    parser.description = _TUNE
    parser.add_argument("pair", nargs="?", metavar="PAIR", help="pair, model or GGUF file; default: the chosen one")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(ASPECTS)}; default: all")
    parser.add_argument("--prompts", type=typed, metavar="FILE", help="your workload: JSON lines, prompt or messages")
    add_whole(parser, "--limit", "prompts, half to search with", 12, 2)
    add_temperatures(parser, "of the answers; default: 0.8", default=0.8)
    add_whole(parser, "--max-tokens", "longest answer", 64)
    add_whole(parser, "--rounds", "answers a prompt and side", 4, 2)
    parser.add_argument("--minutes", type=float, default=15.0, metavar="N", help="time to search; default: 15")
    parser.add_argument("--dry-run", action="store_true", help="show what was found, store nothing")
    parser.add_argument("--forget", action="store_true", help="remove what is stored for the pair")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    shared.add_model_options(parser)


def run_tune(options: argparse.Namespace) -> int:
    """Exit code 130 when interrupted; nothing is stored then."""
    from localspec.drafters.heads.loading import apart
    from localspec.models.installed.installed import find, find_one
    from localspec.runtime.kept import tuning

    shared.take_target(options, options.pair, "PAIR")
    target, draft = find(options.target)
    draft = draft if options.draft is None else find_one(options.draft)
    draft, heads = apart(draft, [find_one(head) for head in options.heads or ()])
    if options.forget:
        gone = tuning.forget(target, draft)
        print(f"{'Removed' if gone else 'Nothing is stored of'} the tuning of {target.name}.", file=sys.stderr)
        return 0
    return _tune(options, target, draft, heads)


def _tune(options: argparse.Namespace, target: Path, draft: Path | None, heads: tuple[Path, ...]) -> int:
    from localspec.checks.gain import TunePlan, TuneReport, tune
    from localspec.runtime.kept import tuning

    shared.check_comparison(options)
    settings = shared.fitting(options, shared.engine_settings(options))
    base = {name: value for name, value in settings.items() if name not in ("target", "draft", "tuned")}
    base["heads"] = heads
    EngineSettings(target, draft, **base)  # refuse bad values before anything is loaded
    search, check = _questions(options)
    aspects = ASPECTS if options.only is None else tuple(options.only.split(","))
    for name in aspects:
        if name not in ASPECTS:
            raise UsageError(f"--only names {name!r}; there are: {', '.join(ASPECTS)}.")
    plan = TunePlan(aspects, options.rounds, options.minutes)
    report = TuneReport()
    try:
        with load_progress() as progress:
            tune(target, draft, base, search, check, plan, progress, report)
    except KeyboardInterrupt:
        _print_tuned(options, report, None, "interrupted; nothing was stored")
        return 130
    if not report.sure or (gain := report.gain) is None:
        _print_tuned(options, report, None, "")
        return 0
    prompts = "the shipped prompts" if options.prompts is None else options.prompts.name
    workload = f"{prompts}, temperature {options.temperature:g}, {options.max_tokens} tokens"
    exact, today = str(base.get("exact", "auto")), date.today().isoformat()
    found = tuning.Tuning(report.settings, gain.value, gain.low, gain.high, exact, today, workload)
    fault = "" if options.dry_run else tuning.write(target, draft, found)
    end = f"not stored, nothing can be kept: {fault}" if fault else "stored"
    _print_tuned(options, report, found, "not stored (--dry-run)" if options.dry_run else end)
    return 1 if fault else 0


def _questions(options: argparse.Namespace) -> tuple[list[Task], list[Task]]:
    """Every other prompt to search with, the rest to check with."""
    from localspec.checks.gain import questions
    from localspec.checks.prompts import load_prompts

    if not options.minutes > 0:
        raise UsageError(f"--minutes is {options.minutes:g}; it must be above 0.")
    prompts = load_prompts(options.prompts)
    if len(prompts) < 2:
        raise UsageError(f"{options.prompts} has one prompt; tuning needs two or more, to check with others.")
    step = max(1, len(prompts) // options.limit)
    found = questions(prompts[::step][: options.limit], options.temperature, options.max_tokens)
    return found[::2], found[1::2]


def _print_tuned(options: argparse.Namespace, report: TuneReport, found: Tuning | None, end: str) -> None:
    if options.json:
        trials = list[dict[str, Any]]()
        for trial in report.trials:
            tried = {"aspect": trial.challenger.aspect, "settings": trial.challenger.changes}
            gained = {"gain": trial.gain and asdict(trial.gain), "taken": trial.taken, "why": trial.why}
            trials.append(tried | gained)
        told: dict[str, Any] = {"defaults": report.defaults, "trials": trials, "finished": report.finished}
        told |= {"settings": report.settings if found else {}, "gain": report.gain and asdict(report.gain)}
        print(json.dumps(told | {"outcome": end or "the defaults stay"}))
        return

    def interval(gain: Ratio) -> str:
        return f"{gain.value:.3f}x ({gain.low:.3f} to {gain.high:.3f})"

    if report.defaults:
        print(f"defaults: {report.defaults['configuration']}, {report.defaults['threads']} threads")
    for trial in report.trials:
        gain = "" if trial.gain is None else f"{interval(trial.gain)} of the best so far"
        parts = (gain, "taken" if trial.taken else trial.why)
        print(f"{trial.challenger.words:28} {', '.join(filter(None, parts))}")
    if not report.finished and end != "interrupted; nothing was stored":
        print("The time was up before everything was tried; --minutes gives more.")
    verdict = "No setting that was tried is faster than the defaults beyond noise; the defaults stay."
    if report.gain is not None:
        words = ", ".join(f"{name} {value}" for name, value in report.settings.items())
        unsure = "" if found is not None else "; not surely faster, so the defaults stay"
        verdict = f"{words}: {interval(report.gain)} of the defaults on other prompts{unsure}."
    print(verdict)
    if found is not None and set(found.settings) & {"threads", "kernels", "cache"}:
        print("Answers may read differently from now on: the last bits of logits depend on threads, kernels and cache.")
    if end:
        print(end[0].upper() + end[1:] + ".")


def add_options_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.add_argument("--check-updates", action="store_true", help="ask PyPI whether a newer localspec is out")
    parser.add_argument("--disk", action="store_true", help="all that is kept on disk, with sizes")
    told = "write a report for an issue as JSON, without prompts and keys"
    parser.add_argument("--bundle", metavar="FILE", help=told)
    shared.add_model_options(parser)


def run_doctor(options: argparse.Namespace) -> int:
    from localspec.checks import doctor

    shared.take_default(options)
    findings = [*doctor.examine_machine(options.wide), *doctor.examine_machine_state()]
    if options.disk:
        findings += doctor.examine_disk()
    if options.check_updates:
        findings.append(doctor.examine_updates())
    with shared.load_engine(options) as engine:
        findings += doctor.examine_engine(engine)
        settings = asdict(engine.settings)
    if options.bundle:
        doctor.write_bundle(typed(options.bundle), findings, settings)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.name:{width}}  {finding.value}")
            if finding.advice:
                print(f"{'':{width}}  -> {finding.advice}")
            if finding.command:
                print(f"{'':{width}}     {finding.command}")
        if options.bundle:
            print(f"Wrote {options.bundle}. Read it before you attach it to an issue.")
    return 1 if any(finding.advice for finding in findings) else 0
