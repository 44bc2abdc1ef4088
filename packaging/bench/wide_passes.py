"""`localspec bench passes` for every weight type on a 1 B shape, and what was aimed at beside what was found.

    python packaging/bench/wide_passes.py FOLDER [--types Q8_0,Q4_K_M] [--rounds 3] [--keep]

Writes a random model of each type to FOLDER (see random_model.py), measures it, keeps FOLDER/passes-TYPE.json and
removes the model unless --keep or it was there before. The last table's numbers are ratios within one run: `w1` =
llama.cpp's best time over ours at width 1, `w8 cost` = time of width 8 in passes of width 1, and so on. An aim of "not
slower" allows 3 % for noise. Ctrl-C ends the current type early and prints what there is. On 2 cores about 3 minutes
and 3.5 GB of memory a type (6.5 GB for F16 and BF16). Exit code 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from random_model import TYPES, write
from shapes import SHAPES

from localspec.bench.pass_times import PassReport, PassSettings, Point, as_dict, heading, measure_passes, notes, tables
from localspec.bench.report import ReportTable


class Figure(NamedTuple):
    """A ratio, and what is aimed at."""

    name: str
    value: float | None
    theirs: float | None
    """llama.cpp's own, for comparison."""
    least: float | None = None
    most: float | None = None

    @property
    def missed(self) -> bool:
        if self.value is None:
            return False
        return (self.least is not None and self.value < self.least) or (
            self.most is not None and self.value > self.most
        )

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        beside = f" ({self.theirs:.2f})" if self.theirs is not None else ""
        return f"{self.value:.2f}{beside}{' !' if self.missed else ''}"


MOST_COST = {"Q8_0": (1.5, 2.4), "Q4_K_M": (2.3, 4.0)}
"""Cost of widths 8 and 16 that is aimed at, 128 tokens of context, on a CPU of two cores with AVX-512."""


def figures(kind: str, report: PassReport) -> list[Figure]:
    """The ratios of one type."""
    places = {(point.kind, point.length, point.width): point for point in report.points}
    short, long = report.settings.lengths[0], report.settings.lengths[-1]
    eight, sixteen = MOST_COST.get(kind, (None, None))
    full = kind == "Q8_0"
    prompt = places.get(("prefill", 0, report.settings.prefill))
    return [
        Figure("w1", _speedup(places.get(("pass", short, 1))), None, least=0.97),
        _cost(report, "w8 cost", places.get(("pass", short, 8)), eight),
        _cost(report, "w16 cost", places.get(("pass", short, 16)), sixteen),
        Figure("long w1", _speedup(places.get(("pass", long, 1))), None, least=53 / 45 if full else None),
        Figure("long w8", _speedup(places.get(("pass", long, 8))), None, least=249 / 90 if full else None),
        Figure("prefill", _speedup(prompt), None, least=2.0 if full else 0.97),
    ]


def _speedup(point: Point | None) -> float | None:
    return None if point is None else point.speedup


def _cost(report: PassReport, name: str, point: Point | None, most: float | None) -> Figure:
    narrow = None if point is None else report.narrow(point)
    if point is None or narrow is None:
        return Figure(name, None, None)
    ours, one = point.best("wide"), narrow.best("wide")
    theirs, their_one = point.llama_best, narrow.llama_best
    return Figure(
        name,
        ours / one if ours and one else None,
        theirs / their_one if theirs and their_one else None,
        most=most,
    )


def main() -> int:
    """Folder in, tables out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--shape", choices=list(SHAPES), default="1b")
    parser.add_argument("--widths", default="1,2,4,8,16,32")
    parser.add_argument("--lengths", default="128,3584", help="the first and the last are compared with the aims")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="leave the models in the folder")
    options = parser.parse_args()
    kinds = options.types.split(",")
    if unknown := set(kinds) - set(TYPES):
        parser.error(f"no such type: {', '.join(unknown)}; there are {', '.join(TYPES)}")
    widths, lengths = (tuple(int(part) for part in text.split(",")) for text in (options.widths, options.lengths))
    settings = PassSettings(widths, lengths, threads=options.threads, rounds=options.rounds)
    options.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Figure]] = {}
    for kind in kinds:
        path = options.folder / f"random-{options.shape}-{kind}.gguf"
        there = path.exists()
        if not there:
            write(path, kind, SHAPES[options.shape])
        print(f"measuring {path.name}", file=sys.stderr, flush=True)
        try:
            report = measure_passes(path, settings)
        finally:
            if not (there or options.keep):
                path.unlink()
        (options.folder / f"passes-{kind}.json").write_text(json.dumps(as_dict(report), indent=1), encoding="utf-8")
        print("\n" + heading(report))
        for table in tables(report):
            print("\n" + "\n".join(table.lines()))
        print("\n" + "\n".join(notes(report)) + "\n", flush=True)
        found[kind] = figures(kind, report)
        if report.interrupted:
            break
    first = next(iter(found.values()))
    rows = tuple((kind, *(str(figure) for figure in row)) for kind, row in found.items())
    title = "Ratios (in brackets llama.cpp's own; ! = aim missed)"
    print("\n".join(ReportTable(title, ("type", *(figure.name for figure in first)), rows).lines()))
    return 1 if any(figure.missed for row in found.values() for figure in row) else 0


if __name__ == "__main__":
    raise SystemExit(main())
