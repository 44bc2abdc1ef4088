"""Records how pass times vary on this machine: quiet, and beside busy loops that come and go.

    python packaging/bench/pass_noise.py TARGET.gguf [--passes 2000] [--out tests/data/pass_noise.json]

Plain passes of one row, half of them quiet, half of them beside one busy loop a core that runs for `PHASE` seconds and
rests as long. The file has, for each pass, its seconds over the quiet median, and the share of them for which our
threads waited for a CPU: worlds of tests/planning play them as the speed of their machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from localspec.llama.cache.context import Context
from localspec.llama.library.contention import waited
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed

PHASE = 3.0
"""Seconds for which busy loops run, and rest."""
LENGTH = 256
"""Tokens in the cache before each pass."""


def spin(phase: float) -> None:
    """Runs, and rests, for so many seconds each, for ever."""
    while True:
        end = time.monotonic() + phase
        while time.monotonic() < end:
            pass
        time.sleep(phase)


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many busy loops beside what runs here."""
    loops = [multiprocessing.Process(target=spin, args=(PHASE,), daemon=True) for _ in range(count)]
    for one in loops:
        one.start()
    try:
        yield
    finally:
        for one in loops:
            one.terminate()
            one.join()


def record(context: Context, passes: int) -> list[tuple[float, float]]:
    """(seconds, seconds waited) of so many passes of one row."""
    tokens, found = (np.arange(LENGTH) * 7919 % context.n_vocab).astype(np.int32), []
    context.prefill(0, tokens, LENGTH)
    for _ in range(passes):
        context.forget(0, LENGTH - 1)
        before, begun = waited() or 0.0, time.perf_counter()
        context.decode([Feed(0, tokens, LENGTH)])
        seconds = time.perf_counter() - begun
        found.append((seconds, (waited() or 0.0) - before))
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--passes", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("tests/data/pass_noise.json"))
    options = parser.parse_args()
    model = Model.load(options.target, kernels="wide")
    context = Context(model, ContextSettings(n_ctx=2 * LENGTH))
    record(context, 50)
    quiet = record(context, options.passes // 2)
    with neighbours(os.cpu_count() or 1):
        shared = record(context, options.passes // 2)
    median = statistics.median(seconds for seconds, _ in quiet)
    told: dict[str, Any] = {"target": options.target.name, "cpus": os.cpu_count(), "median_seconds": round(median, 6)}
    for name, passes in (("quiet", quiet), ("shared", shared)):
        told[name] = [[round(seconds / median, 3), round(delay / seconds, 3)] for seconds, delay in passes]
        slower = sorted(seconds / median for seconds, _ in passes)
        shares = ", ".join(f"{share:.0%} {slower[int(share * len(slower))]:.2f}" for share in (0.05, 0.5, 0.95, 0.99))
        print(f"{name}: seconds over the quiet median: {shares}, most {slower[-1]:.2f}")
    options.out.write_text(json.dumps(told) + "\n")
    context.close()
    model.close()


if __name__ == "__main__":
    main()
