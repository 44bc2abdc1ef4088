"""The same engine on the bundled pair, with a clock that only passes move: what drafters bring, free of noise.

    python packaging/bench/virtual.py [--costs q8] [--contenders localspec,"draft alone"] [--limit 4] [--seeds 1,2]

Everything that runs is the product: texts, drafts, acceptance, the plan and what it learns. Only the clock is not the
machine's: a pass of the target or of the draft model moves it by what such a pass costs on a padded pair of 1 B and
0.1 B (measured once on a quiet machine), everything else not at all. So two runs print the same table (not with
`--between`), and a change of the plan is seen in the third digit, where timing one answer is good to a quarter.

The target's reading of prompts is left out; what a draft model reads is not. What a program spends between passes does
not count, or with `--between` for all plans, as CPU time of all its threads on this machine, which differs a little
from run to run. The plan knows from the start what passes cost, and a drafter "alone" or of a fixed length guesses in
every pass, as `--drafter` has it, whether it pays or not. The kernels are llama.cpp's own and passes of any width are
allowed: which widths are exact, and fast, depends on the machine.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from statistics import fmean, median
from typing import Any


class Clock:
    """The machine's, until it is set: from then on it stands still, or runs as CPU time is used (`between`)."""

    def __init__(self) -> None:
        self._machine, self._set, self.between = time.perf_counter, 0.0, False

    def __call__(self) -> float:
        return self._set + self._used() if self._set else self._machine()

    def set(self, now: float) -> None:
        """It is so late now."""
        self._set = now - self._used()

    def _used(self) -> float:
        return time.process_time() if self.between else 0.0


CLOCK = Clock()
time.perf_counter = CLOCK  # before localspec is imported, which takes it by name

from localspec.bench.report import ReportTable  # noqa: E402
from localspec.bench.sides import EngineSide  # noqa: E402
from localspec.checks.compare import Heat, Side, compare, tasks  # noqa: E402
from localspec.checks.prompts import load_workloads  # noqa: E402
from localspec.llama.cache.context import Context  # noqa: E402
from localspec.planning.costs import (  # noqa: E402
    DraftCosts,
    Knowledge,
    PassCosts,
)
from localspec.runtime import memory  # noqa: E402
from localspec.runtime.engine import Engine  # noqa: E402

WORKLOADS = [name for name in load_workloads() if not name.startswith("long-")]
COSTS = {
    # name: milliseconds of a pass of 1 to 8 rows, of 9 to 16, of a level of the draft model, of a token it reads
    "q8": ((25.5, 28.4, 29.6, 30.6, 30.8, 31.5, 32.6, 34.0), 56.0, 2.7, 0.35),
    "q8-slow": ((31.8, 32.5, 32.6, 32.8, 32.9, 33.2, 34.0, 36.3), 62.0, 5.0, 0.5),
    "q4": ((17.2, 20.7, 22.6, 25.2, 27.2, 30.7, 33.4, 34.3), 65.0, 2.7, 0.5),
    "tiny": ((0.60, 0.75, 0.95, 1.10, 1.25, 1.35, 1.50, 1.85), 2.5, 0.45, 0.03),
}
"""Q8_0 and Q4_K_M with localspec's kernels on 2 cores with AVX-512, in a fast and in a slow hour; the bundled pair on 2
cores of an AMD EPYC."""
REBUILD = {"tiny": 0.35}
"""Milliseconds that a pass takes longer after one of another width, where that is much of a pass."""
_GROWTH = 6000.0
"""Cached tokens that double what a pass costs."""
ALONE = ("draft", "habits", "lookup", "suffix")
PARTS = ("draft_seconds", "verify_seconds", "host_seconds")
"""Of an answer's statistics, what decoding took."""
AIM = 0.97
"""Of the best single drafter, what localspec must reach."""


_WARM_TOKENS = 8
"""Of an answer that does not count, before the others."""
LEARNING = 10
"""Answers after which single ones are told."""


class Machine:
    """What passes cost."""

    def __init__(self, name: str) -> None:
        dense, wide, level, read = COSTS[name]
        self._rows = [0.0, *(0.001 * one for one in dense), *[0.001 * wide] * 56]
        self._level, self._read = 0.001 * level, 0.001 * read
        self._rebuild, self._last = 0.001 * REBUILD.get(name, 0.0), 0

    def target(self, rows: int, length: int) -> float:
        """Seconds of a pass after one of the same width."""
        return self._rows[rows] * (1.0 + length / _GROWTH)

    def draft(self, rows: int) -> float:
        """Seconds of a pass of the draft model, one row of which is a level."""
        return self._level + (rows - 1) * self._read

    def install(self) -> None:
        """From now on passes move the clock by what they cost."""
        CLOCK.set(CLOCK())
        decode, read = Context.decode, Context.prefill_chunk

        def decoded(context: Context, feeds: Any) -> Any:
            before = CLOCK()
            if context.settings.grid_prefill:
                rows = sum(context.pending(one.slot, one.tokens) + len(one.draft_tokens) for one in feeds)
                seconds = self.target(rows, sum(len(one.tokens) for one in feeds) // len(feeds))
                seconds += self._rebuild if rows != self._last else 0.0
                self._last = rows
            else:
                left = [len(one.tokens) - context.reusable(one.slot, one.tokens, one.prompt_length) for one in feeds]
                seconds = self.draft(sum(left))
            found = decode(context, feeds)
            CLOCK.set(before + seconds)
            return found

        def was_read(context: Context, slot: int, tokens: Any, prompt_length: int, *rest: Any) -> int:
            before, known = CLOCK(), context.reusable(slot, tokens, prompt_length)
            length = read(context, slot, tokens, prompt_length, *rest)
            seconds = 0.0 if context.settings.grid_prefill else self._read * (length - known)
            CLOCK.set(before + seconds)
            return length

        Context.decode, Context.prefill_chunk = decoded, was_read  # type: ignore[method-assign]

    def begin(self, engine: Engine) -> None:
        """The engine knows what passes cost, and nothing else: a program's first minute on a machine that was timed."""
        widths, knowledge = range(1, 2 + engine.settings.longest_draft), Knowledge()
        knowledge.costs = PassCosts({n: {w: self.target(w, n) for w in widths} for n in (64, 768, 1792)})
        knowledge.draft_costs["draft"] = DraftCosts({1: self._level}, self._read)
        engine.loaded.knowledge = knowledge
        engine.configure(drafter="none")  # the next answer gets a plan of its own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", choices=COSTS, default="q8", help="whose passes they are")
    parser.add_argument(
        "--contenders",
        default="localspec," + ",".join(f"{one} alone" for one in ALONE),
        help='"draft alone": the length is the plan\'s; "draft 4": always 4 tokens',
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--temperatures", default="0,0.7,1")
    parser.add_argument("--limit", type=int, default=8, help="prompts of each workload")
    parser.add_argument("--between", action="store_true", help="CPU time between passes counts, too")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--answers", action="store_true", help="tell the speed of single answers, too")
    parser.add_argument(
        "--seeds",
        default="1",
        help="of the first prompt; with each of them everything is answered by plans that know nothing, and added up",
    )
    options = parser.parse_args()
    wanted = options.contenders.split(",")
    temperatures = tuple(float(text) for text in options.temperatures.split(","))
    prompts = load_workloads(options.workloads.split(","), limit=options.limit)
    machine, heats = Machine(options.costs), dict[int, list[Heat]]()
    with Engine.load(tuned=False, threads=1, exact="off", kernels="plain") as engine:
        CLOCK.between = options.between
        machine.install()
        memory.settle()  # as programs do
        for seed in map(int, options.seeds.split(",")):
            asked = tasks([one for several in prompts.values() for one in several], temperatures, options.tokens, seed)
            heats[seed] = []
            for name in ("plain", *wanted):
                machine.begin(engine)
                side = contender(engine, name)
                heats[seed] += compare([Side(name, side.answer, side.begin)], asked, warm=_WARM_TOKENS)
    if any(heat.refused for several in heats.values() for heat in several):
        raise SystemExit("A prompt does not fit the context.")
    show(heats, wanted)
    for name in wanted if options.answers else ():
        print(_answers([heat for several in heats.values() for heat in several], name))


def contender(engine: Engine, name: str) -> EngineSide:
    """Nothing that one learns is another's."""
    if name == "localspec":
        return EngineSide(engine, name)
    if name == "plain":
        return EngineSide(engine, name, length=0)
    drafter, length = name.rsplit(" ", 1)
    return EngineSide(engine, name, drafter, None if length == "alone" else int(length))


def show(heats: dict[int, list[Heat]], names: list[str]) -> None:
    """Speed over plain decoding and ours over the best of the others: by temperature, and of whole workloads.

    Args:
        heats: by seed.
        names: of the contenders besides plain decoding.
    """
    seconds = _seconds([heat for several in heats.values() for heat in several])
    rows = [[workload, temperature, *_row(found, names)] for (workload, temperature), found in seconds.items()]
    rows.sort(key=lambda row: row[1] == "all")
    columns = ("workload", "temp", *names, "of the best")
    print("\n".join(ReportTable("Speed over plain decoding", columns, tuple(map(tuple, rows))).lines()))
    _summary("cells", {" at ".join(where): one for where, one in seconds.items() if where[1] != "all"}, names)
    _summary("whole workloads", _whole(seconds), names)
    if len(heats) > 1:
        for seed, several in heats.items():
            _summary(f"... of seed {seed}", _whole(_seconds(several)), names)


def _answers(heats: list[Heat], name: str) -> str:
    """A line on the speed of single answers over plain decoding; the first ones, for learning, are left out."""
    spent = {
        name: [
            sum(float(one.stats[part]) for part in PARTS)
            for heat in heats
            if name in heat.runs
            for one in heat.runs[name].answers
        ]
        for name in ("plain", name)
    }
    speeds = sorted(plain / own for plain, own in list(zip(spent["plain"], spent[name], strict=True))[LEARNING:])
    return f"{len(speeds)} single answers of {name}: lowest {speeds[0]:.3f}, median {median(speeds):.3f}"


def _seconds(heats: list[Heat]) -> dict[tuple[str, str], dict[str, float]]:
    """What decoding took: by workload and temperature, or "all" of them, by contender."""
    seconds: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for heat in heats:
        ((name, run),) = heat.runs.items()
        spent = sum(float(one.stats[part]) for one in run.answers for part in PARTS)
        for temperature in (f"{heat.task.options.sampling.temperature:g}", "all"):
            seconds[heat.task.prompt.workload, temperature][name] += spent
    return seconds


def _whole(seconds: dict[tuple[str, str], dict[str, float]]) -> dict[str, dict[str, float]]:
    return {workload: found for (workload, temperature), found in seconds.items() if temperature == "all"}


def _summary(what: str, seconds: dict[str, dict[str, float]], names: list[str]) -> None:
    """A line on all shares of the best single drafter's speed."""
    shares = {where: share for where, found in seconds.items() for share in _share(found, names)}
    if shares:
        lowest = min(shares, key=lambda where: shares[where])
        below, mean = sum(one < AIM for one in shares.values()), math.exp(fmean(map(math.log, shares.values())))
        print(
            f"{what}: lowest {shares[lowest]:.3f} ({lowest}), geometric mean {mean:.3f}, "
            f"{below} of {len(shares)} below {AIM}"
        )


def _row(found: dict[str, float], names: list[str]) -> list[str]:
    speeds = {name: found["plain"] / found[name] for name in names}
    return [
        *(f"{speed:.3f}" for speed in speeds.values()),
        *([f"{share:.3f}" for share in _share(found, names)] or ["-"]),
    ]


def _share(found: dict[str, float], names: list[str]) -> list[float]:
    """Ours of the best single drafter's speed; empty = nothing to compare."""
    others = [found[name] for name in names if name != "localspec"]
    return [min(others) / found["localspec"]] if others and "localspec" in names else []


if __name__ == "__main__":
    main()
