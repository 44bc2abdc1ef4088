"""Shares of the best fixed length that no stall of the machine moves: by the median round of every prompt.

    localspec bench --drafters suffix,lookup,recycling --lengths 4,7 --rounds 14 --session runs.jsonl
    python packaging/bench/medians.py runs.jsonl

`localspec bench` adds up all rounds, as is right for what was measured; where one round in ten stalls for a third of a
second that decides which of six short contenders is the best. Here a contender's time is the sum, over prompts, of the
median over rounds; the best is chosen, in hindsight, by the same figures.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

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
    columns = ("workload", "temp", "rounds", "localspec", "best fixed", "its speed", "of best")
    print("\n".join(Table("Speed over plain decoding, median rounds", columns, tuple(map(_row, cells))).lines()))


def _row(cell: Cell) -> tuple[str, ...]:
    plain, ours = seconds(cell.plain), seconds(cell.product)
    fixed = {name: seconds(one) for name, one in cell.contenders.items() if one.fixed or name == BASELINE}
    best = min(fixed, key=lambda name: fixed[name])
    rounds = max(len(runs) for runs in cell.plain.by_prompt().values())
    shares = (plain / ours, best, plain / fixed[best], fixed[best] / ours)
    return (
        cell.workload,
        f"{cell.temperature:g}",
        str(rounds),
        *(one if isinstance(one, str) else f"{one:.3f}" for one in shares),
    )


def seconds(figures: Figures) -> float:
    """Decode time of all its prompts, each in its median round."""
    return sum(median(run.decode_seconds for run in rounds.values()) for rounds in figures.by_prompt().values())


if __name__ == "__main__":
    main()
