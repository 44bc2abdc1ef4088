"""`localspec bench run`: real prompts, plain and speculative taking turns, and other programs' servers beside us."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from localspec.cli.options import add_model_options, check_comparison, load_engine, take_target
from localspec.cli.output import count_bar, print_table
from localspec.cli.parser import numbers, reader, whole, whole_numbers, words
from localspec.errors import ContextOverflowError, LocalspecError, UsageError
from localspec.options import LIMITS
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.bench.report import BenchSettings, Results
    from localspec.bench.sides import EngineSide, Served
    from localspec.checks.compare import Heat, Task
    from localspec.runtime.engine import Engine


DESCRIPTION = """\
Answers prompts plain and with localspec as it comes, and with fixed draft lengths where --drafters or --lengths names
them, taking turns prompt by prompt in one process and one engine, round after round. Ratios are paired: the same prompt
in the same round. Shown are speeds with 95% intervals, what drafts brought, where the time went, and whether the texts
are byte-equal. Ctrl-C ends with what was measured until then.

Workloads: maths, code-edit, json, copy, chat, multi-turn, long-code and long-chat (2,000 tokens of context), random;
code-twice, rewrite and again (what was asked before in another conversation, answered with a corpus of that one).
Your own prompts (--prompts) are JSON lines with `messages`, `prompt` or `text`, and optionally `workload`.
"""
_TEMPERATURES, _LENGTHS, _PROMPTS = "0,0.7,1", "2,4,7", 4
_WARM_TOKENS = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", nargs="?", metavar="PAIR", help="pair, model or GGUF file; default: the chosen one")
    group = parser.add_argument_group("what is answered")
    group.add_argument("--workloads", metavar="NAME,...", help="default: all")
    group.add_argument("--prompts", type=typed, metavar="FILE", help="your own, instead of the shipped ones")
    group.add_argument("--limit", type=int, metavar="N", help="prompts of each workload; default: 4")
    group.add_argument("--temperature", default=_TEMPERATURES, metavar="X,...", help="default: 0,0.7,1")
    group.add_argument(
        "--tokens", type=whole(1, 1 << 20), default=64, metavar="N", help="longest answer a turn; default: 64"
    )
    group.add_argument(
        "--rounds", type=whole(1, 1000), default=3, metavar="N", help="times everything is answered; default: 3"
    )
    group.add_argument(
        "--seed", type=reader(LIMITS["seed"]), default=1, metavar="N", help="of the first prompt; default: 1"
    )
    group = parser.add_argument_group("who answers, besides plain decoding and localspec without flags")
    group.add_argument("--drafters", metavar="NAME,...", help="whose fixed lengths to try, or `all`")
    group.add_argument("--lengths", metavar="N,...", help="fixed draft lengths, or `none`; with --drafters: 2,4,7")
    group = parser.add_argument_group("results")
    group.add_argument("--json", action="store_true", help="everything as JSON on standard output")
    group.add_argument("--chart", type=typed, metavar="FILE", help="a picture of the speeds: .png, .svg or .pdf")
    add_rivals(parser)
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    """Measures and prints; exit code 1 if an exact text differs, 130 when it was interrupted."""
    from localspec.bench.report import BenchSettings
    from localspec.checks.compare import tasks
    from localspec.checks.prompts import load_workloads

    if options.drafter is not None or options.max_draft_tokens is not None:
        raise UsageError(
            "`localspec bench run` compares drafters itself.", "Choose them with --drafters and --lengths."
        )
    check_comparison(options)
    take_target(options, options.pair, "PAIR")
    if options.chart is not None:
        from localspec.bench import report  # says now if there is nothing to draw with
    limit = _PROMPTS if options.limit is None and options.prompts is None else options.limit
    workloads = load_workloads(words(options.workloads or ""), options.prompts, limit)
    temperatures = numbers("temperature", options.temperature)
    settings = BenchSettings(temperatures, options.tokens, options.rounds, options.seed)
    prompts = [prompt for several in workloads.values() for prompt in several]
    asked, lengths = tasks(prompts, temperatures, settings.tokens, settings.seed), _lengths(options)
    with ExitStack() as stack:
        engine = stack.enter_context(load_engine(options))
        ours, servers = _ours(options, engine, lengths), against(options, engine)
        who: list[EngineSide | Served] = [*ours, *servers]
        for side in who:
            stack.callback(side.close)
        heats: list[Heat] = []
        end = _measure(who, asked, settings, heats)
        results = _results(engine, heats, settings, len(asked) * settings.rounds * len(who), servers)
    if options.chart is not None:
        report.draw(results, options.chart)
    _show(options, results)
    if isinstance(end, LocalspecError):
        raise end
    return 130 if end is not None else 1 if results.forks else 0


def _lengths(options: argparse.Namespace) -> tuple[int, ...]:
    text = _LENGTHS if options.lengths is None and options.drafters is not None else options.lengths or "none"
    lengths = () if text == "none" else whole_numbers("lengths", text)
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
    who: list[EngineSide | Served], asked: list[Task], settings: BenchSettings, heats: list[Heat]
) -> KeyboardInterrupt | LocalspecError | None:
    """Fills in heats as they are finished; what ended it early, if some were.

    Raises:
        ContextOverflowError: a prompt does not fit the context.
        LocalspecError, KeyboardInterrupt: nothing was finished.
    """
    from localspec.checks.compare import Side, compare

    sides = [Side(one.name, one.answer, one.begin) for one in who]
    try:
        with count_bar() as progress:
            for heat in compare(sides, asked, settings.rounds, warm=_WARM_TOKENS, progress=progress):
                if heat.refused is not None:
                    raise _unfit(heat.task, heat.refused)
                heats.append(heat)
    except (KeyboardInterrupt, LocalspecError) as end:
        if not heats:
            raise
        return end
    return None


def _unfit(task: Task, error: LocalspecError) -> LocalspecError:
    if not isinstance(error, ContextOverflowError):
        return error
    words = f"Prompt {task.prompt.index} of the workload {task.prompt.workload}: {error.message}"
    return ContextOverflowError(words, "Give a larger --context, or leave the workload out with --workloads.")


def _results(engine: Engine, heats: list[Heat], settings: BenchSettings, total: int, servers: list[Served]) -> Results:
    from localspec.bench.report import Results, make_cells
    from localspec.bench.sides import labels, machine_facts, pair_facts

    cells, facts = make_cells(heats), {one.name: dict(one.facts) for one in servers}
    return Results(cells, settings, pair_facts(engine), machine_facts(engine), labels(engine), total, facts)


def _show(options: argparse.Namespace, results: Results) -> None:
    from localspec.bench.report import as_dict, heading, notes, tables

    if options.json:
        print(json.dumps(as_dict(results)))
        return
    print(heading(results))
    for table in tables(results):
        print()
        print_table(table)
    print()
    for line in notes(results):
        print(line)


# `localspec bench run --against URL`: other programs' servers beside us, at the same prompts, taking turns.


def add_rivals(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("another program beside us")
    group.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="an OpenAI-style endpoint that serves the same model; repeatable",
    )
    group.add_argument("--against-model", default="", metavar="NAME", help="as it calls the model; default: its first")
    group.add_argument("--against-key", metavar="VARIABLE", help="environment variable that holds its key")
    group.add_argument(
        "--against-timeout", type=float, default=300.0, metavar="SECONDS", help="of silence, reading a prompt included"
    )


def against(options: argparse.Namespace, engine: Engine) -> list[Served]:
    """The endpoints, each asked for one token to see that it answers; the caller closes them.

    Raises:
        UsageError: no URL, a name twice, or an empty variable.
        LocalspecError: one does not answer.
    """
    from localspec.bench.sides import Served, rendered
    from localspec.remote.server import Server

    if not options.against_timeout > 0:
        raise UsageError(f"--against-timeout is {options.against_timeout:g}; it must be above 0.")
    found, names = list[Served](), set[str]()
    try:
        for text in options.against:
            name, url = _split(text)
            server = Server(
                url,
                _key(options.against_key),
                name=name,
                silence=options.against_timeout,
                option="--against",
                key_hint="Name the variable that holds its key: --against-key.",
                hint="Is it running? --against-timeout allows more silence.",
            )
            endpoint = Served(server, partial(rendered, engine), name=name, model=options.against_model)
            found.append(endpoint)
            if endpoint.name in names:
                raise UsageError(f"--against names {endpoint.name!r} twice.", "Call one of them NAME=URL.")
            names.add(endpoint.name)
    except BaseException:
        for endpoint in found:
            endpoint.close()
        raise
    return found


def _split(text: str) -> tuple[str, str]:
    """Name and URL; a name has no slash, which every URL has."""
    name, equals, url = text.partition("=")
    return (name.strip(), url) if equals and "/" not in name else ("", text)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"--against-key names {variable}, which is not set.", f"Try: export {variable}=...")
    return key
