"""`localspec verify`, `tune`, `doctor` and `bench`: equal texts, faster settings, this installation, and speeds."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from localspec.checks import ASPECTS
from localspec.cli import shared
from localspec.cli.output import aligned, count_bar, load_progress, print_table, report
from localspec.cli.parser import add_temperatures, add_whole, numbers, reader, words
from localspec.config import EngineSettings
from localspec.errors import ContextOverflowError, LocalspecError, UsageError
from localspec.machine import ram
from localspec.options import LIMITS
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.bench.sides import EngineSide, ServedSide
    from localspec.checks.compare import Heat, Ratio, Task
    from localspec.checks.gain import TuneReport
    from localspec.checks.verify import Report
    from localspec.runtime.engine import Engine
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
    settings, drafter, branches = None, "auto", options.branches or 2  # all, where the options name no drafter
    if options.drafter is not None:
        drafter, branches = options.drafter, options.branches or 1
        plugin.check_name(drafter)
        length = 4 if options.max_draft_tokens is None else options.max_draft_tokens
        settings = [DraftSetting(drafter, length, branches)]
    longest = max(7, options.max_draft_tokens or 0)
    more: dict[str, Any] = {"drafter": drafter, "max_draft_tokens": longest, "branches": branches}
    found, interrupted = Report(), False
    given = {"max_tokens": options.max_tokens, "seed": options.seed, "report": found}
    with shared.load_engine(options, **more) as engine:
        try:
            with count_bar() as progress:
                verify(engine, prompts, temperatures, settings, progress=progress, **given)
        except KeyboardInterrupt:
            if not found.runs:
                raise
            interrupted = True
            print("Interrupted; this was found until then:", file=sys.stderr)
        exact = engine.loaded.exactness
    _print_verified(options, found, exact)
    return 130 if interrupted else 1 if found.forks or not found.drafted else 0


def _print_verified(options: argparse.Namespace, found: Report, exact: str) -> None:
    lines = [f"{'setting':24} {'runs':>6} {'tokens':>8} {'drafted':>8} {'accepted':>8} {'forks':>6}"]
    for setting, tally in found.by_setting.items():
        row = f"{tally.runs:6d} {tally.tokens:8d} {tally.drafted:8d} {tally.accepted:8d} {len(tally.forks):6d}"
        lines.append(f"{setting!s:24} {row}")
    forks = (fork for tally in found.by_setting.values() for fork in tally.forks)
    lines += [f"passes: {exact}", *map(str, forks)]
    if found.too_long:
        lines.append(f"{found.too_long} prompts are longer than the context and were left out. --context N holds more.")
    verdict = "byte-equal" if not found.forks else f"{len(found.forks)} forks"
    verdict += "" if found.drafted else ", but nothing was drafted, so nothing was tested"
    lines.append(f"{found.runs} runs, {found.tokens} tokens: {verdict}.")
    report(options.json, found.as_dict() | {"exact": exact}, *lines)


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
    from localspec.drafters.heads.head import apart
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
    plan, tried = TunePlan(aspects, options.rounds, options.minutes), TuneReport()
    try:
        with load_progress() as progress:
            tune(target, draft, base, search, check, plan, progress, tried)
    except KeyboardInterrupt:
        _print_tuned(options, tried, None, "interrupted; nothing was stored")
        return 130
    if not tried.sure or (gain := tried.gain) is None:
        _print_tuned(options, tried, None, "")
        return 0
    prompts = "the shipped prompts" if options.prompts is None else options.prompts.name
    workload = f"{prompts}, temperature {options.temperature:g}, {options.max_tokens} tokens"
    exact, today = str(base.get("exact", "auto")), date.today().isoformat()
    found = tuning.Tuning(tried.settings, gain.value, gain.low, gain.high, exact, today, workload)
    fault = "" if options.dry_run else tuning.write(target, draft, found)
    end = f"not stored, nothing can be kept: {fault}" if fault else "stored"
    _print_tuned(options, tried, found, "not stored (--dry-run)" if options.dry_run else end)
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


def _print_tuned(options: argparse.Namespace, tried: TuneReport, found: Tuning | None, end: str) -> None:
    def interval(gain: Ratio) -> str:
        return f"{gain.value:.3f}x ({gain.low:.3f} to {gain.high:.3f})"

    trials, lines = list[dict[str, Any]](), list[str]()
    if tried.defaults:
        lines = [f"defaults: {tried.defaults['configuration']}, {tried.defaults['threads']} threads"]
    for trial in tried.trials:
        facts = {"aspect": trial.aspect, "settings": trial.changes, "gain": trial.gain and asdict(trial.gain)}
        trials.append(facts | {"taken": trial.taken, "why": trial.why})
        gain = "" if trial.gain is None else f"{interval(trial.gain)} of the best so far"
        parts = (gain, "taken" if trial.taken else trial.why)
        lines.append(f"{trial.words:28} {', '.join(filter(None, parts))}")
    if not tried.finished and end != "interrupted; nothing was stored":
        lines.append("The time was up before everything was tried; --minutes gives more.")
    verdict = "No setting that was tried is faster than the defaults beyond noise; the defaults stay."
    if tried.gain is not None:
        words = ", ".join(f"{name} {value}" for name, value in tried.settings.items())
        unsure = "" if found is not None else "; not surely faster, so the defaults stay"
        verdict = f"{words}: {interval(tried.gain)} of the defaults on other prompts{unsure}."
    lines.append(verdict)
    if found is not None and set(found.settings) & {"threads", "kernels", "cache"}:
        lines.append(
            "Answers may read differently from now on: the last bits of logits depend on threads, kernels and cache."
        )
    lines += [end[0].upper() + end[1:] + "."] if end else []
    data: dict[str, Any] = {"defaults": tried.defaults, "trials": trials, "finished": tried.finished}
    data |= {"settings": tried.settings if found else {}, "gain": tried.gain and asdict(tried.gain)}
    report(options.json, data | {"outcome": end or "the defaults stay"}, *lines)


def add_options_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.add_argument("--check-updates", action="store_true", help="ask PyPI whether a newer localspec is out")
    parser.add_argument("--disk", action="store_true", help="all that is kept on disk, with sizes")
    text = "write a report for an issue as JSON, without prompts and keys"
    parser.add_argument("--bundle", metavar="FILE", help=text)
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
    rows = list[tuple[str, str]]()
    for finding in findings:
        rows.append((finding.name, finding.value))
        rows += [("", f"-> {finding.advice}")] if finding.advice else []
        rows += [("", f"   {finding.command}")] if finding.command else []
    lines = [f"Wrote {options.bundle}. Read it before you attach it to an issue."] if options.bundle else []
    report(options.json, [asdict(finding) for finding in findings], *aligned(rows), *lines)
    return 1 if any(finding.advice for finding in findings) else 0


_RUN = """\
Answers prompts plain and with localspec as it comes, and with fixed draft lengths where --drafters or --lengths names
them, taking turns prompt by prompt in one process and one engine, round after round. Ratios are paired: the same prompt
in the same round. Shown are speeds with 95% intervals, what drafts brought, where the time went, and whether the texts
are byte-equal. Ctrl-C ends with what was measured until then.

Workloads: maths, code-edit, json, copy, chat, multi-turn, long-code and long-chat (2,000 tokens of context), random;
code-twice, rewrite and again (what was asked before in another conversation, answered with a corpus of that one).
Your own prompts (--prompts) are JSON lines with `messages`, `prompt` or `text`, and optionally `workload`.
"""
_PASSES = """\
Times passes of several widths (rows checked at once) and the prefill of a prompt, on localspec's own kernels and on
llama.cpp's with and without repacking, taking turns in one run; each number is the quickest of all rounds. GB/s counts
the weights, keys and values a pass must read, GOPS a multiply-add as two; both are also shown as shares of what this
machine can do, measured in the same run. Ctrl-C stops and shows what there is.

The default target is the bundled one. It is so small that it lies in the processor's caches and a pass is mostly
overhead: that shows what splitting passes between two libraries costs, not how fast weights are read. For that, give
the model you use with --target. Each kind of kernels holds its own copy of the weights: three times the model's size.
"""
_LENGTHS, _PROMPTS = "2,4,7", 4
_WARM_TOKENS = 8


def add_options_bench(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", title="benchmarks; default: run")
    line = "speed, acceptance and texts of real prompts, plain and speculative taking turns"
    _add_run_options(benchmarks.add_parser("run", help=line, description=_RUN))
    line = "time of passes by width, and of prefill"
    _add_pass_options(benchmarks.add_parser("passes", help=line, description=_PASSES))


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", nargs="?", metavar="PAIR", help="pair, model or GGUF file; default: the chosen one")
    group = parser.add_argument_group("what is answered")
    group.add_argument("--workloads", metavar="NAME,...", help="default: all")
    group.add_argument("--prompts", type=typed, metavar="FILE", help="your own, instead of the shipped ones")
    group.add_argument("--limit", type=int, metavar="N", help="prompts of each workload; default: 4")
    group.add_argument("--temperature", default="0,0.7,1", metavar="X,...", help="default: 0,0.7,1")
    add_whole(group, "--tokens", "longest answer a turn", 64, most=1 << 20)
    add_whole(group, "--rounds", "times everything is answered", 3, most=1000)
    seed = reader(LIMITS["seed"])
    group.add_argument("--seed", type=seed, default=1, metavar="N", help="of the first prompt; default: 1")
    group = parser.add_argument_group("who answers, besides plain decoding and localspec without flags")
    group.add_argument("--drafters", metavar="NAME,...", help="whose fixed lengths to try, or `all`")
    group.add_argument("--lengths", metavar="N,...", help="fixed draft lengths, or `none`; with --drafters: 2,4,7")
    group = parser.add_argument_group("results")
    group.add_argument("--json", action="store_true", help="everything as JSON on standard output")
    group.add_argument("--chart", type=typed, metavar="FILE", help="a picture of the speeds: .png, .svg or .pdf")
    group = parser.add_argument_group("another program beside us")
    text = "an OpenAI-style endpoint that serves the same model; repeatable"
    group.add_argument("--against", action="append", default=[], metavar="[NAME=]URL", help=text)
    group.add_argument("--against-model", default="", metavar="NAME", help="as it calls the model; default: its first")
    group.add_argument("--against-key", metavar="VARIABLE", help="environment variable that holds its key")
    text = "of silence, reading a prompt included"
    group.add_argument("--against-timeout", type=float, default=300.0, metavar="SECONDS", help=text)
    shared.add_model_options(parser)


def _add_pass_options(parser: argparse.ArgumentParser) -> None:
    numbers = "N,N,..."
    parser.add_argument("--target", metavar="NAME|FILE", help="pair, model or GGUF file; default: the bundled pair's")
    parser.add_argument("--widths", metavar=numbers, help="rows of a pass; default: 1,2,4,8,16,32")
    parser.add_argument("--lengths", metavar=numbers, help="tokens of context; default: 128,3584")
    parser.add_argument("--prefill", type=int, metavar="N", help="tokens of a prompt, 0 for none; default: 512")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads; default: one a physical core")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each kind of kernels; default: 5")
    parser.add_argument("--device", metavar="NAME", help="all layers there instead; `doctor` lists the devices")
    parser.add_argument("--json", action="store_true", help="everything as JSON on standard output")


def run_bench(options: argparse.Namespace) -> int:
    return _bench_run(options) if options.benchmark == "run" else _bench_passes(options)


def _bench_run(options: argparse.Namespace) -> int:
    """Measures and prints; exit code 1 if an exact text differs, 130 when it was interrupted."""
    from localspec.bench import report as form
    from localspec.bench.sides import ServedSide, facts_of
    from localspec.checks.compare import tasks
    from localspec.checks.prompts import load_workloads

    if options.drafter is not None or options.max_draft_tokens is not None:
        raise UsageError(
            "`localspec bench run` compares drafters itself.", "Choose them with --drafters and --lengths."
        )
    shared.check_comparison(options)
    shared.take_target(options, options.pair, "PAIR")
    if options.chart is not None:
        form.figure_type()  # says now if there is nothing to draw with
    limit = _PROMPTS if options.limit is None and options.prompts is None else options.limit
    workloads = load_workloads(words(options.workloads or ""), options.prompts, limit)
    temperatures = numbers("temperature", options.temperature, float)
    settings = form.BenchSettings(temperatures, options.tokens, options.rounds, options.seed)
    prompts = [prompt for several in workloads.values() for prompt in several]
    asked, lengths = tasks(prompts, temperatures, settings.tokens, settings.seed), _lengths(options)
    with ExitStack() as stack:
        engine = stack.enter_context(shared.load_engine(options))
        who: list[EngineSide | ServedSide] = [*_ours(options, engine, lengths)]
        for side in who:
            stack.callback(side.close)
        for server in _against(options, engine):
            stack.callback(server.close)
            who.append(server)
        heats: list[Heat] = []
        end = _measure(who, asked, settings.rounds, heats)
        facts = {one.name: dict(one.facts) for one in who if isinstance(one, ServedSide)}
        total = len(asked) * settings.rounds * len(who)
        results = form.Results(form.make_cells(heats), settings, *facts_of(engine), total, facts)
    if options.chart is not None:
        form.draw(results, options.chart)
    _show_measured(form, results, options.json)
    if isinstance(end, LocalspecError):
        raise end
    return 130 if end is not None else 1 if results.forks else 0


def _show_measured(form: ModuleType, found: Any, as_json: bool) -> None:
    """What was measured, in the form of its module: `as_dict`, or `heading`, `tables` and `notes`."""
    if as_json:
        print(json.dumps(form.as_dict(found)))
        return
    print(form.heading(found))
    for table in form.tables(found):
        print()
        print_table(table)
    print("", *form.notes(found), sep="\n")


def _lengths(options: argparse.Namespace) -> tuple[int, ...]:
    text = _LENGTHS if options.lengths is None and options.drafters is not None else options.lengths or "none"
    lengths = () if text == "none" else numbers("lengths", text, int)
    for length in lengths:
        if not 1 <= length <= 63:
            raise UsageError(f"--lengths has {length}; draft lengths are between 1 and 63.")
    return lengths


def _ours(options: argparse.Namespace, engine: Engine, lengths: tuple[int, ...]) -> list[EngineSide]:
    from localspec.bench.sides import engine_sides, possible_drafters
    from localspec.drafters import plugin

    names = words(options.drafters or "all")
    possible = possible_drafters(engine)
    drafters = tuple(possible) if names == ("all",) else names
    for name in drafters:
        if ":" in name:
            plugin.check_name(name)
        elif name not in (*possible, "auto"):
            raise UsageError(f"--drafters has {name!r}; there are: {', '.join((*possible, 'auto'))}.")
    return engine_sides(engine, drafters, lengths)


def _measure(
    who: list[EngineSide | ServedSide], asked: list[Task], rounds: int, heats: list[Heat]
) -> KeyboardInterrupt | LocalspecError | None:
    """Fills in heats as they are finished; what ended it early, if some were, is raised only if none was."""
    from localspec.checks.compare import Side, compare

    sides = [Side(one.name, one.answer, one.begin) for one in who]
    try:
        with count_bar() as progress:
            for heat in compare(sides, asked, rounds, warm=_WARM_TOKENS, progress=progress):
                if heat.refused is not None:
                    if not isinstance(heat.refused, ContextOverflowError):
                        raise heat.refused
                    prompt, hint = heat.task.prompt, "leave the workload out with --workloads."
                    words = f"Prompt {prompt.index} of the workload {prompt.workload}: {heat.refused.message}"
                    raise ContextOverflowError(words, f"Give a larger --context, or {hint}")
                heats.append(heat)
    except (KeyboardInterrupt, LocalspecError) as end:
        if not heats:
            raise
        return end
    return None


def _against(options: argparse.Namespace, engine: Engine) -> Iterator[ServedSide]:
    """The endpoints of `--against`, each asked for one token to see that it answers; the caller closes them."""
    from localspec.bench.sides import ServedSide, rendered
    from localspec.remote.server import Server

    if not options.against_timeout > 0:
        raise UsageError(f"--against-timeout is {options.against_timeout:g}; it must be above 0.")
    names = set[str]()
    for text in options.against:
        name, equals, url = text.partition("=")
        if not equals or "/" in name:  # a name has no slash, which every URL has
            name, url = "", text
        key = os.environ.get(options.against_key or "", "") or None
        if options.against_key is not None and key is None:
            raise UsageError(
                f"--against-key names {options.against_key}, which is not set.",
                f"Try: export {options.against_key}=...",
            )
        server = Server(
            url,
            key,
            name=name.strip(),
            silence=options.against_timeout,
            option="--against",
            key_hint="Name the variable that holds its key: --against-key.",
            hint="Is it running? --against-timeout allows more silence.",
        )
        endpoint = ServedSide(server, partial(rendered, engine), name=name.strip(), model=options.against_model)
        yield endpoint
        if endpoint.name in names:
            raise UsageError(f"--against names {endpoint.name!r} twice.", "Call one of them NAME=URL.")
        names.add(endpoint.name)


def _bench_passes(options: argparse.Namespace) -> int:
    """Measures and prints; exit code 130 when it was interrupted."""
    from localspec.bench import pass_times
    from localspec.llama.exact import wide
    from localspec.llama.model import check_text_model
    from localspec.models.installed.installed import find_one

    given = shared.given_of(options, ("widths", "lengths", "prefill", "threads", "rounds", "device"))
    given |= {name: numbers(name, given[name], int) for name in ("widths", "lengths") if name in given}
    settings = pass_times.PassSettings(**given)  # refuse bad values before a model is loaded
    path = find_one(options.target)
    copies = 1 if options.device else 3 if wide.available() else 2
    needed, free = pass_times.needed_bytes(check_text_model(path), settings, copies), ram().free_bytes
    if free and needed > free and not options.device:
        print(
            f"localspec: warning: {copies} copies of {path.name} with their caches need {needed / 1e9:.1f} GB,"
            f" but only {free / 1e9:.1f} GB are free. The times may be the disk's.",
            file=sys.stderr,
        )
    with load_progress() as progress:
        measured = pass_times.measure_passes(path, settings, progress)
    _show_measured(pass_times, measured, options.json)
    return 130 if measured.interrupted else 0
