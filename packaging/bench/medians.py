"""Shares of the best fixed length that no stall of the machine moves: by the median round of every prompt.

    localspec bench --drafters suffix,lookup,recycling --lengths 4,7 --rounds 14 --session runs.jsonl
    python packaging/bench/medians.py runs.jsonl

`localspec bench` adds up all rounds, as is right for what was measured; where one round in ten stalls for a third of a
second that decides which of six short contenders is the best. Here a contender's time is the sum, over prompts, of the
median over rounds. The best is chosen in hindsight: "of best" by the same figures, so the luck of the luckiest of six
counts as its speed, "of other" by one half of the rounds and compared by the other half, and the other way round. Where
there are several temperatures, "all" is what all of them took, with one fixed length for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from localspec.bench.cells import Cell, Figures, make_cells
from localspec.bench.run import BASELINE
from localspec.bench.session import Session
from localspec.bench.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", type=Path, help="file of `localspec bench --session`, or of its cache folder")
    path = parser.parse_args().session
    if not path.is_file():
        parser.error(f"there is no file {path}")
    with Session.open(path) as session:
        cells = make_cells(session.runs.values())
    columns = ("workload", "temp", "rounds", "localspec", "best fixed", "its speed", "of best", "of other")
    rows = [_row(cell.workload, f"{cell.temperature:g}", [cell]) for cell in cells]
    for workload in dict.fromkeys(cell.workload for cell in cells):
        whole = [cell for cell in cells if cell.workload == workload]
        rows += [_row(workload, "all", whole)] if len(whole) > 1 else []
    print("\n".join(Table("Speed over plain decoding, median rounds", columns, tuple(rows)).lines()))


def _row(workload: str, temperature: str, cells: Sequence[Cell]) -> tuple[str, ...]:
    fixed: dict[str, list[Figures]] = {BASELINE: [cell.plain for cell in cells]}
    for name, one in cells[0].contenders.items():
        if one.fixed and all(name in cell.contenders for cell in cells):  # an interrupted session lacks some
            fixed[name] = [cell.contenders[name] for cell in cells]
    product = [cell.product for cell in cells]
    rounds = sorted({run.key.round for cell in cells for run in cell.plain.runs})
    best, plain, ours = _best(fixed, rounds), seconds(fixed[BASELINE], rounds), seconds(product, rounds)
    halves = rounds[::2], rounds[1::2]
    other = [
        seconds(fixed[_best(fixed, chosen)], timed) / seconds(product, timed)
        for chosen, timed in (halves, halves[::-1])
        if chosen and timed
    ]
    return (
        workload,
        temperature,
        str(len(rounds)),
        f"{plain / ours:.3f}",
        best,
        f"{plain / seconds(fixed[best], rounds):.3f}",
        f"{seconds(fixed[best], rounds) / ours:.3f}",
        f"{geometric_mean(other):.3f}" if other else "-",
    )


def _best(fixed: Mapping[str, Sequence[Figures]], rounds: Collection[int]) -> str:
    return min(fixed, key=lambda name: seconds(fixed[name], rounds))


def seconds(cells: Sequence[Figures], rounds: Collection[int]) -> float:
    """Decode time of all prompts of these cells, each in the median of these rounds."""
    times = [
        [run.decode_seconds for turn, run in found.items() if turn in rounds]
        for figures in cells
        for found in figures.by_prompt().values()
    ]
    return sum(map(median, filter(None, times)))


if __name__ == "__main__":
    main()
