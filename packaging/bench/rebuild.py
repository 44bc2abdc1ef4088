"""What a pass takes longer after one of another width: llama.cpp keeps the graph of the last pass only.

    python packaging/bench/rebuild.py [MODEL.gguf] [--widths 2,5,8,16] [--rounds 200]

Milliseconds, medians, by rows of a pass: after passes of as many rows, after a plain pass, and what a plain pass
takes after plain ones and after that width. The same tokens are decoded again and again after 200 cached ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np

from localspec import Engine
from localspec.bench.table import Table
from localspec.engine.interfaces import Target
from localspec.types import Feed

_CACHED = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="GGUF file; default: the bundled target")
    parser.add_argument("--widths", default="2,5,8,16")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    widths = [int(width) for width in options.widths.split(",")]
    with Engine.load(options.model, drafter="none") as engine:
        target: Target = engine.loaded.context
        rows = engine.on_engine_thread(lambda: [tuple(_row(target, width, options.rounds)) for width in widths])
    columns = ("rows", "after as many", "after a plain one", "a plain one", "after these rows")
    print("\n".join(Table("Milliseconds of a pass", columns, tuple(rows)).lines()))


def _row(target: Target, width: int, rounds: int) -> Iterator[str]:
    tokens = np.arange(5, 5 + _CACHED, dtype=np.int32)
    target.prefill_chunk(0, tokens, _CACHED, lambda: False)
    chain = np.arange(-1, width - 2, dtype=np.int32)

    def seconds(rows: int) -> float:
        started = perf_counter()
        target.decode([Feed(0, tokens, _CACHED, tokens[: rows - 1].copy(), chain[: rows - 1].copy())])
        return perf_counter() - started

    yield str(width)
    for before, rows in ((width, width), (1, width), (1, 1), (width, 1)):
        seconds(before)
        times = []
        for _ in range(rounds):
            if before != rows:
                seconds(before)
            times.append(seconds(rows))
        yield f"{1e3 * median(times):.3f}"


if __name__ == "__main__":
    main()
