"""`localspec bench run`: real prompts, plain and speculative taking turns, and other programs' servers beside us."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.bench_output import count_bar, numbers, print_table, whole_numbers, words
from localspec.cli.options import add_model_options, check_comparison, load_engine, take_target
from localspec.errors import LocalspecError, UsageError
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.bench.contest.benchmark import Benchmark, BenchSettings
    from localspec.bench.contest.run import Contender, Session
    from localspec.bench.results.results import Results
    from localspec.runtime.engine import Engine


DESCRIPTION = """\
Answers prompts plain, with localspec as it comes, and with fixed draft lengths, taking turns prompt by prompt in one
process and one engine, round after round. Ratios are paired: the same prompt in the same round. Shown are speeds with
95% intervals, what drafts brought, where the time went, the best fixed length in hindsight and the one that was best in
the other rounds, the clairvoyant limit that the log and the measured costs allow, and whether the texts are byte-equal.

Workloads: maths, code-edit, json, copy, chat, multi-turn, long-code and long-chat (2,000 tokens of context), random;
code-twice, rewrite and again (what was asked before in another conversation, answered with a corpus of that one).
Your own prompts (--prompts) are JSON lines with `messages`, `prompt` or `text`, and optionally `workload`.

Every finished run is in the session's file at once; the same command goes on where it was interrupted.
"""
_TEMPERATURES, _LENGTHS, _PROMPTS = "0,0.7,1", "2,4,7", 4


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pair", nargs="?", metavar="PAIR", help="pair, model or GGUF file; default: the chosen one")
    group = parser.add_argument_group("what is answered")
    group.add_argument("--workloads", metavar="NAME,...", help="default: all")
    group.add_argument("--prompts", type=typed, metavar="FILE", help="your own, instead of the shipped ones")
    group.add_argument("--limit", type=int, metavar="N", help="prompts of each workload; default: 4")
    group.add_argument("--temperature", metavar="X,...", help="default: 0,0.7,1")
    group.add_argument("--tokens", type=int, metavar="N", help="longest answer a turn; default: 64")
    group.add_argument("--rounds", type=int, metavar="N", help="times everything is answered; default: 3")
    group.add_argument("--seed", type=int, metavar="N", help="of the first prompt; default: 1")
    group = parser.add_argument_group("who answers, besides plain decoding and localspec without flags")
    group.add_argument("--drafters", metavar="NAME,...", help="whose fixed lengths to try, or `all` (default)")
    group.add_argument("--lengths", metavar="N,...", help="fixed draft lengths, or `none`; default: 2,4,7")
    group = parser.add_argument_group("results")
    group.add_argument("--session", type=typed, metavar="FILE", help="where runs are kept; default: in the cache")
    group.add_argument("--fresh", action="store_true", help="begin anew instead of going on with the session")
    group.add_argument("--json", action="store_true", help="everything as JSON on standard output")
    group.add_argument("--csv", type=typed, metavar="FILE", help="a row per workload, temperature and contender")
    group.add_argument("--html", type=typed, metavar="FILE", help="a page with pictures that needs nothing else")
    add_rivals(parser)
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    """Measures what is left and prints; exit code 1 if an exact text differs, 130 when it was interrupted."""
    from localspec.bench.contest.benchmark import Benchmark
    from localspec.bench.contest.workloads import load_workloads

    if options.drafter is not None or options.max_draft_tokens is not None:
        raise UsageError(
            "`localspec bench run` compares drafters itself.", "Choose them with --drafters and --lengths."
        )
    check_comparison(options)
    take_target(options, options.pair, "PAIR")
    limit = _PROMPTS if options.limit is None and options.prompts is None else options.limit
    workloads = load_workloads(words(options.workloads or ""), options.prompts, limit)
    settings, lengths = _settings(options), _lengths(options)
    with ExitStack() as stack:
        engine = stack.enter_context(load_engine(options))
        contenders = _contenders(options, engine, lengths)
        for contender in contenders:
            stack.callback(contender.close)
        benchmark = Benchmark(engine, contenders, workloads, settings)
        session = stack.enter_context(_session(options, benchmark))
        interrupted = _measure(benchmark, session)
        results = _results(benchmark, session)
        _show(options, results)
    return 130 if interrupted else 1 if results.forks else 0


def _settings(options: argparse.Namespace) -> BenchSettings:
    from localspec.bench.contest.benchmark import BenchSettings

    given = {name: value for name in ("tokens", "rounds", "seed") if (value := getattr(options, name)) is not None}
    temperatures = numbers("temperature", _TEMPERATURES if options.temperature is None else options.temperature)
    return BenchSettings(temperatures=temperatures, **given)


def _lengths(options: argparse.Namespace) -> tuple[int, ...]:
    text = _LENGTHS if options.lengths is None else options.lengths
    lengths = () if text in ("", "none") else whole_numbers("lengths", text)
    for length in lengths:
        if not 1 <= length <= 63:
            raise UsageError(f"--lengths has {length}; draft lengths are between 1 and 63.")
    return lengths


def _contenders(options: argparse.Namespace, engine: Engine, lengths: tuple[int, ...]) -> list[Contender]:
    from localspec.bench.contest.contenders import engine_contenders, possible_drafters
    from localspec.drafters import plugin

    names = words(options.drafters or "all")
    possible = possible_drafters(engine)
    drafters = tuple(possible) if names == ("all",) else names
    for name in drafters:
        if ":" in name:
            plugin.check_name(name)
        elif name not in (*possible, "auto"):
            raise UsageError(f"--drafters has {name!r}; there are: {', '.join((*possible, 'auto'))}.")
    return [*engine_contenders(engine, drafters, lengths), *against(options, engine)]


def _session(options: argparse.Namespace, benchmark: Benchmark) -> Session:
    """The session's file; one of ours that is complete begins anew."""
    from localspec import paths
    from localspec.bench.contest.run import Session

    path: Path = options.session or paths.cache_dir() / "bench" / f"{benchmark.name}.jsonl"
    session = Session.open(path, fresh=options.fresh)
    left, total = len(benchmark.left(session)), len(benchmark.runs)
    if not left and options.session is None:
        session.close()
        session = Session.open(path, fresh=True)
    elif 0 < left < total:
        print(f"localspec: going on with {path}: {left} of {total} runs are left.", file=sys.stderr)
    if session.damaged:
        print(f"localspec: warning: {session.damaged} lines of {path} cannot be read.", file=sys.stderr)
    return session


def _measure(benchmark: Benchmark, session: Session) -> bool:
    """Does what is left; whether it was interrupted."""
    with count_bar() as progress:
        try:
            benchmark.measure(session, progress)
        except KeyboardInterrupt:
            if not benchmark.found(session):
                raise
            return True
    return False


def _results(benchmark: Benchmark, session: Session) -> Results:
    from localspec.bench.contest.contenders import labels, machine_facts, pair_facts
    from localspec.bench.results.cells import make_cells
    from localspec.bench.results.results import Results

    engine, found = benchmark.engine, benchmark.found(session)
    facts: dict[str, Any] = {"pair": pair_facts(engine), "machine": machine_facts(engine), "labels": labels(engine)}
    session.note("facts", facts)
    return Results(
        make_cells(found),
        benchmark.settings,
        done=len(found),
        total=len(benchmark.runs),
        session=str(session.path),
        **facts,
    )


def _show(options: argparse.Namespace, results: Results) -> None:
    from localspec.bench.results.page import as_html
    from localspec.bench.results.results import as_csv, as_dict, heading, notes, tables

    for path, made in ((options.csv, as_csv), (options.html, as_html)):
        if path is not None:
            _write(path, made(results))
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise LocalspecError(f"{path} cannot be written: {error.strerror}.") from None


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


def against(options: argparse.Namespace, engine: Engine) -> list[Contender]:
    """The endpoints, each asked for one token to see that it answers; the caller closes them.

    Raises:
        UsageError: no URL, a name twice, or an empty variable.
        LocalspecError: one does not answer.
    """
    from localspec.bench.contest.served import Served
    from localspec.bench.results.cells import FIXED
    from localspec.remote.server import Server

    if not options.against_timeout > 0:
        raise UsageError(f"--against-timeout is {options.against_timeout:g}; it must be above 0.")
    model, found, names = engine.loaded.model, list[Served](), set[str]()
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
                hint="Is it running? Finished runs are kept; --against-timeout allows more silence.",
            )
            bos = model.text_of(model.bos) if model.add_bos else ""
            endpoint = Served(server, name=name, model=options.against_model, begin_of_text=bos)
            found.append(endpoint)
            if endpoint.name in names:
                raise UsageError(f"--against names {endpoint.name!r} twice.", "Call one of them NAME=URL.")
            if FIXED.fullmatch(endpoint.name):
                raise UsageError(f"--against calls a server {endpoint.name!r}, as a drafter of fixed length is called.")
            names.add(endpoint.name)
    except BaseException:
        for endpoint in found:
            endpoint.close()
        raise
    return list(found)


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
