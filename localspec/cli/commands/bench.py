"""`localspec bench`: `run` measures speculation on real prompts, `passes` what a pass costs.

Without one of these words, `localspec bench ...` is `localspec bench run ...` (`localspec.cli.WITH_DEFAULT`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from localspec.cli.output import count_bar, load_progress, print_table
from localspec.cli.parser import add_whole, numbers, reader, words
from localspec.cli.shared import add_model_options, check_comparison, load_engine, take_target
from localspec.errors import ContextOverflowError, LocalspecError, UsageError
from localspec.machine import ram
from localspec.options import LIMITS
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.bench.sides import EngineSide, ServedSide
    from localspec.checks.compare import Heat, Task
    from localspec.runtime.engine import Engine

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


def add_options(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", title="benchmarks; default: run")
    for name, (add, _, line, description) in _BENCHMARKS.items():
        add(benchmarks.add_parser(name, help=line, description=description))


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
    told = "an OpenAI-style endpoint that serves the same model; repeatable"
    group.add_argument("--against", action="append", default=[], metavar="[NAME=]URL", help=told)
    group.add_argument("--against-model", default="", metavar="NAME", help="as it calls the model; default: its first")
    group.add_argument("--against-key", metavar="VARIABLE", help="environment variable that holds its key")
    told = "of silence, reading a prompt included"
    group.add_argument("--against-timeout", type=float, default=300.0, metavar="SECONDS", help=told)
    add_model_options(parser)


def _add_pass_options(parser: argparse.ArgumentParser) -> None:
    numbers = "N,N,..."
    parser.add_argument("--target", metavar="NAME|FILE", help="pair, model or GGUF file; default: the bundled pair's")
    parser.add_argument("--widths", metavar=numbers, help="rows of a pass; default: 1,2,4,8,16,32")
    parser.add_argument("--lengths", metavar=numbers, help="tokens of context; default: 128,3584")
    parser.add_argument("--prefill", type=int, metavar="N", help="tokens of a prompt, 0 for none; default: 512")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads; default: one a physical core")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each kind of kernels; default: 5")
    parser.add_argument("--json", action="store_true", help="everything as JSON on standard output")


def run(options: argparse.Namespace) -> int:
    return _BENCHMARKS[options.benchmark][1](options)


def _run(options: argparse.Namespace) -> int:
    """Measures and prints; exit code 1 if an exact text differs, 130 when it was interrupted."""
    from localspec.bench import report
    from localspec.bench.sides import labels, machine_facts, pair_facts
    from localspec.checks.compare import tasks
    from localspec.checks.prompts import load_workloads

    if options.drafter is not None or options.max_draft_tokens is not None:
        raise UsageError(
            "`localspec bench run` compares drafters itself.", "Choose them with --drafters and --lengths."
        )
    check_comparison(options)
    take_target(options, options.pair, "PAIR")
    if options.chart is not None:
        report.figure_type()  # says now if there is nothing to draw with
    limit = _PROMPTS if options.limit is None and options.prompts is None else options.limit
    workloads = load_workloads(words(options.workloads or ""), options.prompts, limit)
    temperatures = numbers("temperature", options.temperature, float)
    settings = report.BenchSettings(temperatures, options.tokens, options.rounds, options.seed)
    prompts = [prompt for several in workloads.values() for prompt in several]
    asked, lengths = tasks(prompts, temperatures, settings.tokens, settings.seed), _lengths(options)
    with ExitStack() as stack:
        engine = stack.enter_context(load_engine(options))
        servers: list[ServedSide] = []
        who: list[EngineSide | ServedSide] = [*_ours(options, engine, lengths)]
        for side in who:
            stack.callback(side.close)
        for server in _against(options, engine):
            stack.callback(server.close)
            servers.append(server)
        heats: list[Heat] = []
        end = _measure([*who, *servers], asked, settings.rounds, heats)
        facts, total = {one.name: dict(one.facts) for one in servers}, len(asked) * settings.rounds
        about = settings, pair_facts(engine), machine_facts(engine), labels(engine)
        results = report.Results(report.make_cells(heats), *about, total * (len(who) + len(servers)), facts)
    if options.chart is not None:
        report.draw(results, options.chart)
    _show(report, results, options.json)
    if isinstance(end, LocalspecError):
        raise end
    return 130 if end is not None else 1 if results.forks else 0


def _show(form: ModuleType, found: Any, as_json: bool) -> None:
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


def _passes(options: argparse.Namespace) -> int:
    """Measures and prints; exit code 130 when it was interrupted."""
    from localspec.bench import pass_times
    from localspec.llama.exact import wide
    from localspec.llama.model import check_text_model
    from localspec.models.installed.installed import find_one

    given: dict[str, Any] = {
        name: value
        for name in ("widths", "lengths", "prefill", "threads", "rounds")
        if (value := getattr(options, name)) is not None
    }
    given |= {name: numbers(name, given[name], int) for name in ("widths", "lengths") if name in given}
    settings = pass_times.PassSettings(**given)  # refuse bad values before a model is loaded
    path = find_one(options.target)
    copies = 3 if wide.available() else 2
    needed, free = pass_times.needed_bytes(check_text_model(path), settings, copies), ram().free_bytes
    if free and needed > free:
        print(
            f"localspec: warning: {copies} copies of {path.name} with their caches need {needed / 1e9:.1f} GB,"
            f" but only {free / 1e9:.1f} GB are free. The times may be the disk's.",
            file=sys.stderr,
        )
    with load_progress() as progress:
        report = pass_times.measure_passes(path, settings, progress)
    _show(pass_times, report, options.json)
    return 130 if report.interrupted else 0


_BENCHMARKS: dict[str, tuple[Callable[..., None], Callable[..., int], str, str]] = {
    "run": (
        _add_run_options, _run, "speed, acceptance and texts of real prompts, plain and speculative taking turns", _RUN
    ),
    "passes": (_add_pass_options, _passes, "time of passes by width, and of prefill", _PASSES),
}  # fmt: skip
