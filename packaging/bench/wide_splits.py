"""What it costs that llama.cpp's scheduler runs every matrix product of localspec_wide as a split of its own.

    python packaging/bench/wide_splits.py MODEL.gguf [--rounds 9]

A hollow model, as many layers as MODEL but 64 values wide, has all the splits and next to no arithmetic. What its pass
of one row takes longer with our kernels than with llama.cpp's, over the splits there are more, is the price of a split;
times MODEL's splits it is set against MODEL's own pass of one row. A team of threads starting and a copy of nothing are
in it, as they are in MODEL. The quickest pass of each counts.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from random_model import write

from localspec.bench.passes import PassReport, PassSettings, measure_passes
from localspec.bench.shapes import Shape
from localspec.gguf import read_header

LENGTH = 128


def measure(path: Path, rounds: int, threads: int) -> PassReport:
    """Passes of one row."""
    return measure_passes(path, PassSettings(widths=(1,), lengths=(LENGTH,), prefill=0, rounds=rounds, threads=threads))


def seconds(report: PassReport) -> tuple[float, float]:
    """Of a pass: ours, and the quicker of llama.cpp's."""
    point = report.points[0]
    ours, theirs = point.best("wide"), point.llama_best
    if ours is None or theirs is None:
        raise SystemExit(f"localspec_wide cannot be used here: {report.wide_reason or 'it was not timed'}.")
    return ours, theirs


def splits(report: PassReport) -> tuple[int, int]:
    """Of a pass of one row: ours, and llama.cpp's; reports read "98" or "98 / 66" (prefill / one row)."""
    least = min(int(text.split("/")[-1]) for kernels, text in report.splits.items() if kernels != "wide")
    return int(report.splits["wide"].split("/")[-1]), least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    layers = read_header(options.model).number("block_count")
    with tempfile.TemporaryDirectory() as folder:
        hollow = Path(folder) / "hollow.gguf"
        write(hollow, "Q8_0", Shape(hidden=64, layers=layers, heads=1, kv_heads=1, feed_forward=64))
        empty = measure(hollow, options.rounds, options.threads)
    full = measure(options.model, options.rounds, options.threads)
    (ours, theirs), (our_splits, their_splits) = seconds(empty), splits(empty)
    price = (ours - theirs) / (our_splits - their_splits)
    whole, count = seconds(full)[0], splits(full)[0]
    print(f"hollow model of {layers} layers: {ours * 1e3:.3f} ms a pass in {our_splits} splits,", end=" ")
    print(f"llama.cpp {theirs * 1e3:.3f} ms in {their_splits}")
    print(f"a split: {price * 1e6:.1f} us")
    print(f"{options.model.name}: {count} splits in {whole * 1e3:.2f} ms,", end=" ")
    print(f"{100 * price * count / whole:.2f} % (aim: under 3 %)")


if __name__ == "__main__":
    main()
