"""The worlds that every plan is measured in: eleven drafters' luck on four cost curves.

`python -m tests.planning.worlds` prints, for each world, the speed over plain decoding and, from the third answer on,
over the best fixed choice in hindsight; then each answer's over its own best choice: the lowest of the first two
answers ("early"), the lowest and the mean of the others. It stores the figures as JSON, and `--against FILE` sets
another plan's stored figures beside them: two plans are compared without running the older one again. The clock is
virtual, and the plan is given its time there; only "host", seconds a pass, is real.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from math import exp, log
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tests.planning.simulator import CURVES, Process, Regret, World, make, regret, seconds, simulate

WARM, ANSWERS = 2, range(10)
LATER = range(WARM, ANSWERS.stop)
"""What is compared with the best fixed choice: the first answers are for learning."""
PLACES = ANSWERS.stop * 300 + 400


def constant(chance: float) -> npt.NDArray[np.float64]:
    return np.full(PLACES, chance)


def switching(one: float, other: float, period: int) -> npt.NDArray[np.float64]:
    return np.where((np.arange(PLACES) // period) % 2 == 0, one, other).astype(np.float64)


PROCESSES: dict[str, dict[str, Process]] = {
    "useless draft model": {"draft": Process.of(constant(0.02), 1)},
    "draft model right in 0.3": {"draft": Process.of(constant(0.3), 1)},
    "draft model right in 0.5": {"draft": Process.of(constant(0.5), 1)},
    "draft model right in 0.7": {"draft": Process.of(constant(0.7), 1)},
    "draft model right in 0.9": {"draft": Process.of(constant(0.9), 1)},
    "draft model switching": {"draft": Process.of(switching(0.9, 0.1, 400), 1)},
    "lookup switching": {"lookup": Process.of(switching(0.05, 0.95, 150), 2)},
    "lookup switching fast": {"lookup": Process.of(switching(0.05, 0.95, 12), 2)},
    "both": {"lookup": Process.of(switching(0.05, 0.95, 150), 2), "draft": Process.of(constant(0.6), 1)},
    "far too sure": {"draft": Process.of(constant(0.15), 1, scale=5.0)},
    "good at first, then useless": {"draft": Process.of(np.where(np.arange(PLACES) < 700, 0.95, 0.02), 1)},
}


@dataclass(frozen=True)
class Figures:
    """What a plan reached in one world with one seed."""

    over_plain: float
    """Plain decoding's seconds over the plan's, all answers."""
    over_best: float
    """The best fixed choice's seconds over the plan's, the first answers left out."""
    best: str
    """That choice: plain, or a drafter and its nodes."""
    passes: int
    rows: int
    """Rows of all passes together."""
    levels: int
    """Levels that drafters which cost something have computed."""
    host: float
    """Real seconds a pass: the plan, the guesses and the simulator itself."""
    regret: Regret


Worlds: TypeAlias = Mapping[str, Sequence[Figures]]
"""By world, a plan's figures for each seed."""


def figures(name: str, curve: str, seed: int) -> Figures:
    """Runs the plan in this world."""
    world = World(CURVES[curve], PROCESSES[name])
    started = time.perf_counter()
    run = simulate(make(world), ANSWERS, seed=seed)
    host = (time.perf_counter() - started) / len(run.widths)
    best, choice = world.best_fixed(LATER)
    return Figures(
        over_plain=world.plain(ANSWERS) / seconds(run, ANSWERS),
        over_best=best / seconds(run, LATER),
        best=choice,
        passes=len(run.widths),
        rows=sum(run.widths),
        levels=sum(guesser.levels for guesser in run.guessers if not guesser.free),
        host=host,
        regret=regret(run, ANSWERS),
    )


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def table(worlds: Worlds, other: Worlds) -> list[str]:
    """Lines: a world each, geometric means over its seeds, then all of them together; `other` may be empty."""
    heading = f"{'world':44}{'over plain':>11}{'lowest':>8}{'over best':>11}{Regret.HEADING}"
    lines = [heading + (f"{'of the other':>14}" if other else "")]
    ratios = list[float]()
    for name, found in worlds.items():
        line = _line(name, found)
        if name in other:
            ratios.append(_speed(found) / _speed(other[name]))
            line += f"{ratios[-1]:14.3f}"
        lines.append(line)
    every = [one for found in worlds.values() for one in found]
    lines.append(_line("all, geometric mean", every) + (f"{geometric_mean(ratios):14.3f}" if ratios else ""))
    if ratios:
        lines.append(f"lowest world, of the other plan's: {min(ratios):.3f}")
    lines.append(f"host, median a pass: {1e3 * float(np.median([one.host for one in every])):.3f} ms")
    return lines


def _line(name: str, found: Sequence[Figures]) -> str:
    lowest, best = min(one.over_plain for one in found), geometric_mean([one.over_best for one in found])
    return f"{name:44}{_speed(found):11.3f}{lowest:8.3f}{best:11.3f}{Regret.over([one.regret for one in found])}"


def _speed(found: Sequence[Figures]) -> float:
    return geometric_mean([one.over_plain for one in found])


def read(file: Path) -> Worlds:
    """The figures that `main` stored."""
    stored = json.loads(file.read_text())["worlds"]
    return {
        name: [Figures(**{**one, "regret": Regret(**one["regret"])}) for one in found] for name, found in stored.items()
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return found.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.planning.worlds", description=__doc__)
    parser.add_argument("--seeds", default="7,8,9", help="seeds of the passes' noise (default 7,8,9)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only worlds whose name has this text in it")
    parser.add_argument("--out", type=Path, default=Path("build/worlds.json"), help="where the figures are stored")
    parser.add_argument("--against", type=Path, metavar="FILE", help="figures of another plan, to set beside these")
    options = parser.parse_args(arguments)
    other = read(options.against) if options.against else {}
    seeds = [int(one) for one in options.seeds.split(",")]
    keys = [(name, curve) for name in PROCESSES for curve in CURVES if options.only in f"{name}, {curve}"]
    if not keys:
        parser.error(f"no world has {options.only!r} in its name.")
    started = time.perf_counter()
    jobs = [(name, curve, seed) for name, curve in keys for seed in seeds]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(jobs, pool.map(figures, *zip(*jobs, strict=True)), strict=True))
    worlds = {f"{name}, {curve}": [found[name, curve, seed] for seed in seeds] for name, curve in keys}
    print("\n".join(table(worlds, other)))
    head = {"commit": _commit(), "date": date.today().isoformat(), "seeds": seeds}
    stored = {name: [asdict(one) for one in found] for name, found in worlds.items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**head, "worlds": stored}, indent=1) + "\n")
    print(f"{len(jobs)} runs in {time.perf_counter() - started:.0f} s; the figures are in {options.out}.")


if __name__ == "__main__":
    main()
