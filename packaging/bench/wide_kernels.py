"""Times the matrix products of localspec_wide alone, by type and width, its instruction sets side by side in one run.

    python packaging/bench/wide_kernels.py [--columns 2048] [--rows 2048] [--threads 2] [--types Q8_0,Q4_K] [--json]

Every time is the least of many interleaved runs (other load on the machine only ever adds). Weights come from memory:
there are as many copies of the matrix as fill `--megabytes`. GB/s counts bytes of weights once per pass, GOPS two
operations per multiply-add; `ratio` is to width 1 of the same instruction set. Times include preparing the input and
starting threads.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from localspec.gguf import PACKED
from localspec.llama.exact import wide

ISAS = {1: "scalar", 2: "neon", 3: "avx2", 4: "avx512", 5: "i8mm"}
TYPES = ",".join(PACKED)


class Case:
    """Packed matrices of one type, and a product with them at one width."""

    def __init__(self, kind: str, columns: int, rows: int, megabytes: float) -> None:
        self.kind, self.columns, self.rows = int(GGMLQuantizationType[kind]), columns, rows
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        self.bytes = columns // values * size * rows
        copies = 1 + int(megabytes * 1e6) // self.bytes
        self.weights = np.full(
            copies * self.bytes + 64, 1, np.uint8
        )  # every byte 1: quants and scales of ordinary size
        self.at = -self.weights.ctypes.data % 64
        self.copies, self.next = copies, 0

    def seconds(self, width: int, isa: int, threads: int) -> float:
        """One product over the next copy.

        Raises:
            SystemExit: the shape is not taken, or the instruction set is not to be had.
        """
        x = np.ones((width, self.columns), np.float32)
        out = np.empty((width, self.rows), np.float32)
        weights = self.weights.ctypes.data + self.at + self.next * self.bytes
        self.next = (self.next + 1) % self.copies
        run = wide.library().lsw_product
        shape = (self.kind, self.columns, self.rows, width)
        began = time.perf_counter()
        code = run(*shape, weights, x.ctypes.data, out.ctypes.data, isa, threads)
        taken = time.perf_counter() - began
        if code:
            raise SystemExit(f"refused ({code}): {shape}")
        return taken


def measure(case: Case, widths: list[int], isas: list[int], threads: int, seconds: float) -> list[dict[str, Any]]:
    """The least time of every width and instruction set, taken in turns for about `seconds` each."""
    best = {(isa, width): float("inf") for isa in isas for width in widths}
    end = time.perf_counter() + seconds * len(best)
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for isa, width in best:
            best[isa, width] = min(best[isa, width], case.seconds(width, isa, threads))
        rounds += 1
    products = case.columns * case.rows
    return [
        {
            "isa": ISAS[isa],
            "width": width,
            "ms": least * 1e3,
            "gb_per_second": case.bytes / least * 1e-9,
            "gops": 2 * products * width / least * 1e-9,
            "ratio": least / best[isa, widths[0]],
        }
        for (isa, width), least in best.items()
    ]


def _show(kind: str, found: list[dict[str, Any]]) -> None:
    print(f"{kind}\n  {'isa':8}{'width':>6}{'ms':>10}{'GB/s':>8}{'GOPS':>8}{'ratio':>8}")
    for row in found:
        print(
            f"  {row['isa']:8}{row['width']:6}{row['ms']:10.3f}{row['gb_per_second']:8.1f}{row['gops']:8.0f}"
            f"{row['ratio']:8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--widths", default="1,2,4,8,16,32,64")
    parser.add_argument("--isas", default="avx2,avx512,neon,i8mm", help="those not to be had here are left out")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each width and instruction set")
    parser.add_argument("--megabytes", type=float, default=200, help="of weights to walk through")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    library = wide.library()
    room = [np.zeros(4096, np.uint8) for _ in range(3)]
    buffers = [array.ctypes.data for array in room]
    wanted = {number for number, name in ISAS.items() if name in arguments.isas.split(",")}
    isas = [isa for isa in wanted if library.lsw_product(8, 32, 16, 1, *buffers, isa, 1) == 0]
    widths = [int(width) for width in arguments.widths.split(",")]
    results = {}
    for kind in arguments.types.split(","):
        case = Case(kind, arguments.columns, arguments.rows, arguments.megabytes)
        results[kind] = measure(case, widths, sorted(isas), arguments.threads, arguments.seconds)
        if not arguments.json:
            _show(kind, results[kind])
    if arguments.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
