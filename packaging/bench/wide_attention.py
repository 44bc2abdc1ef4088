"""Times localspec_wide's attention beside llama.cpp's own operation, on the same inputs, in one run.

    python packaging/bench/wide_attention.py [--cells 3584] [--layers 16] [--threads 2] [--widths 1 2 4 8] [--prefill]

Every layer has its own keys and values, so that they come from memory as in a model. Times are the least of several
rounds, ours and llama.cpp's in turn, in milliseconds for all layers. Ours pays for a call through ctypes, a team of
threads and fresh scratch memory in every layer, which a model does not. Run from the root of the repository.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from tests.native.wide import attention
from tests.native.wide.attention import F16, Inputs

NAMES = {attention.SCALAR: "scalar", attention.NEON: "neon", attention.AVX2: "avx2", attention.AVX512: "avx512"}


def make_layers(arguments: argparse.Namespace, rows: int) -> list[Inputs]:
    rng = np.random.default_rng(3)
    cells, heads, kv_heads, size = arguments.cells, arguments.heads, arguments.kv_heads, arguments.size
    places = np.arange(cells) - (np.arange(rows) + cells - rows)[:, None]
    mask = np.where(places <= 0, 0, -np.inf).astype(np.float16)[None, None]
    layers = []
    for _ in range(arguments.layers):
        q = rng.standard_normal((1, rows, heads, size), np.float32)
        k, v = (attention.encode(F16, rng.standard_normal((1, cells, kv_heads, size), np.float32)) for _ in range(2))
        k.values, v.values = (np.broadcast_to(np.float32(0), k.values.shape) for _ in range(2))  # only raw is used
        layers.append(Inputs(q, k, v, mask, size**-0.5))
    return layers


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def measure(arguments: argparse.Namespace, rows: int) -> dict[str, float]:
    """Least milliseconds of all layers by name."""
    layers = make_layers(arguments, rows)
    outs = [attention.empty_output(x) for x in layers]
    calls = [attention.describe(x, out) for x, out in zip(layers, outs, strict=True)]
    isas = [isa for isa in attention.isas() if isa != attention.SCALAR]
    with attention.ggml_graph(layers, arguments.threads) as graph:
        work: dict[str, Callable[[], object]] = {"llama.cpp": graph.compute}
        for isa in isas:
            work[NAMES[isa]] = lambda isa=isa: [attention.run(call, isa, arguments.threads) for call in calls]
        least = dict.fromkeys(work, float("inf"))
        for _ in range(arguments.rounds):
            for name, one in work.items():
                least[name] = min(least[name], milliseconds(one))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("cells", 3584), ("layers", 16), ("heads", 32), ("kv-heads", 8), ("size", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--prefill", action="store_true", help="also 512 rows")
    arguments = parser.parse_args()
    for rows in [*arguments.widths, *([512] if arguments.prefill else [])]:
        least = measure(arguments, rows)
        print(f"width {rows:3d}  " + "  ".join(f"{name} {ms:8.2f} ms" for name, ms in least.items()), flush=True)


if __name__ == "__main__":
    main()
