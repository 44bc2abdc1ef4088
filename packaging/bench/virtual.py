"""The same engine on the bundled pair, with a clock that only passes move: what drafters bring, free of noise.

    python packaging/bench/virtual.py [--costs q8] [--contenders localspec,"draft alone"] [--limit 4] [--tokens 96]

Everything that runs is the product: texts, drafts, acceptance, the plan and what it learns. Only the clock is not the
machine's: a pass of the target or of the draft model moves it by what such a pass costs on a padded pair of 1 B and
0.1 B (measured by `packaging/bench/report.py` on a quiet machine), everything else not at all. So two runs print the
same table, and a change of the plan is seen in the third digit, where timing one answer is good to a quarter.

The target's reading of prompts is left out, as in the report; what a draft model reads is not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any


class Clock:
    """The machine's, until it is stopped: from then on `now` is what the time is. Stands for it in all that follows."""

    def __init__(self) -> None:
        self._machine, self.now = time.perf_counter, 0.0

    def __call__(self) -> float:
        return self.now or self._machine()


CLOCK = Clock()
time.perf_counter = CLOCK  # before localspec is imported, which takes it by name

from localspec.bench.benchmark import Benchmark, BenchSettings  # noqa: E402
from localspec.bench.contenders import EngineContender  # noqa: E402
from localspec.bench.run import Run  # noqa: E402
from localspec.bench.session import Session  # noqa: E402
from localspec.bench.workloads import load_workloads  # noqa: E402
from localspec.drafters.recycling import Successors  # noqa: E402
from localspec.engine.costs import DraftCosts, PassCosts  # noqa: E402
from localspec.llama.context import Context  # noqa: E402
from localspec.runtime.engine import Engine  # noqa: E402
from localspec.runtime.knowledge import Knowledge  # noqa: E402

WORKLOADS = ["maths", "code-edit", "json", "copy", "chat", "multi-turn", "random", "code-twice", "rewrite", "again"]
COSTS = {
    # name: milliseconds of a pass of 1 to 8 rows, of 9 to 16, of a level of the draft model, of a token it reads
    "q8": ((25.5, 28.4, 29.6, 30.6, 30.8, 31.5, 32.6, 34.0), 56.0, 2.7, 0.35),
    "q8-slow": ((31.8, 32.5, 32.6, 32.8, 32.9, 33.2, 34.0, 36.3), 62.0, 5.0, 0.5),
    "q4": ((17.2, 20.7, 22.6, 25.2, 27.2, 30.7, 33.4, 34.3), 65.0, 2.7, 0.5),
}
"""Q8_0 and Q4_K_M with localspec's kernels on 2 cores with AVX-512, in a fast and in a slow hour."""
_GROWTH = 6000.0
"""Cached tokens that double what a pass costs."""
ALONE = ("draft", "lookup", "recycling", "suffix")


class Machine:
    """What passes cost."""

    def __init__(self, name: str) -> None:
        dense, wide, level, read = COSTS[name]
        self._rows = [0.0, *(0.001 * one for one in dense), *[0.001 * wide] * 56]
        self._level, self._read = 0.001 * level, 0.001 * read

    def target(self, rows: int, length: int) -> float:
        """Seconds of a pass."""
        return self._rows[rows] * (1.0 + length / _GROWTH)

    def draft(self, rows: int) -> float:
        """Seconds of a pass of the draft model, one row of which is a level."""
        return self._level + (rows - 1) * self._read

    def install(self) -> None:
        """From now on passes alone move the clock, which stands still while they run."""
        CLOCK.now = CLOCK()
        decode, read = Context.decode, Context.prefill_chunk

        def decoded(context: Context, feeds: Any) -> Any:
            before = CLOCK.now
            if context.settings.grid_prefill:
                rows = sum(context.pending(one.slot, one.tokens) + len(one.draft_tokens) for one in feeds)
                seconds = self.target(rows, sum(len(one.tokens) for one in feeds) // len(feeds))
            else:
                left = [len(one.tokens) - context.reusable(one.slot, one.tokens, one.prompt_length) for one in feeds]
                seconds = self.draft(sum(left))
            found = decode(context, feeds)
            CLOCK.now = before + seconds
            return found

        def was_read(context: Context, slot: int, tokens: Any, prompt_length: int, cancel: Any = None) -> int:
            before = context.reusable(slot, tokens, prompt_length)
            length = read(context, slot, tokens, prompt_length, cancel)
            if not context.settings.grid_prefill:
                CLOCK.now += self._read * (length - before)
            return length

        Context.decode, Context.prefill_chunk = decoded, was_read  # type: ignore[method-assign]

    def begin(self, engine: Engine) -> None:
        """The engine knows what passes cost, and nothing else: a program's first minute on a machine that was timed."""
        widths, knowledge = range(1, 2 + engine.settings.longest_draft), Knowledge()
        knowledge.costs = PassCosts({n: {w: self.target(w, n) for w in widths} for n in (64, 768, 1792)}, max(widths))
        knowledge.draft_costs["draft"] = DraftCosts({64: {1: self._level}}, self._read)
        engine.loaded.knowledge, engine.loaded.successors = knowledge, Successors()
        engine.configure(drafter="none")  # whoever answers next gets a plan of its own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", choices=COSTS, default="q8")
    parser.add_argument("--contenders", default="localspec," + ",".join(f"{one} alone" for one in ALONE))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--temperatures", default="0,0.7")
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--branches", type=int, default=1)
    options = parser.parse_args()
    wanted = options.contenders.split(",")
    settings = BenchSettings(
        tuple(map(float, options.temperatures.split(","))), options.tokens, options.rounds, options.seed
    )
    prompts, machine, runs = (
        load_workloads(options.workloads.split(","), limit=options.limit),
        Machine(options.costs),
        [],
    )
    with Engine.load(tuned=False, branches=options.branches, threads=1) as engine:
        machine.install()
        for name in ("plain", *wanted):
            machine.begin(engine)
            benchmark = Benchmark(engine, [contender(engine, name)], prompts, settings)
            with tempfile.TemporaryDirectory() as folder, Session.open(Path(folder) / "runs.jsonl") as session:
                benchmark.measure(session)
                runs += benchmark.found(session)
    show(runs, wanted)


def contender(engine: Engine, name: str) -> EngineContender:
    """Nothing that one learns is another's."""
    if name == "localspec":
        return EngineContender(engine, name)
    if name == "plain":
        return EngineContender(engine, name, length=0)
    drafter, length = name.rsplit(" ", 1)
    return EngineContender(engine, name, drafter, None if length == "alone" else int(length))


def show(runs: list[Run], names: list[str]) -> None:
    """Speed over plain decoding, and ours over the best of the others."""
    seconds: dict[tuple[str, float], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run in runs:
        cell = (run.key.workload, run.key.temperature)
        seconds[cell][run.key.contender] += sum(
            one.stats[part] for one in run.answers for part in ("draft_seconds", "verify_seconds", "host_seconds")
        )
    others = [name for name in names if name != "localspec"]
    print(f"{'workload':>11} temp  " + "  ".join(f"{name:>15}" for name in names) + "   of best")
    shares = []
    for (workload, temperature), found in seconds.items():
        speeds = {name: found["plain"] / found[name] for name in names}
        words = f"{workload:>11} {temperature:4g}  " + "  ".join(f"{speeds[name]:15.3f}" for name in names)
        if others and "localspec" in names:
            share = speeds["localspec"] / max(speeds[name] for name in others)
            shares.append(share)
            words += f"   {share:.3f}"
        print(words)
    if shares:
        print(f"lowest {min(shares):.3f}; {sum(one < 0.97 for one in shares)} of {len(shares)} below 0.97")


if __name__ == "__main__":
    main()
