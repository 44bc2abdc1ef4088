"""Times the native row pipeline beside llama.cpp's own sampler chain, on the same rows, in one run.

    python packaging/bench/kernels.py [--vocabulary 151936] [--rows 8] [--seconds 2] [--json]

Every time is the least of many runs (other load on the machine only ever adds), in milliseconds for all rows. The
draft is a chain of rows - 1 tokens that are all accepted, so that every row is worked on. llama.cpp's chain gets its
candidate array refilled by one memcpy, which is cheaper than the loop with which its own callers fill it; the last
column leaves even that out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from localspec.native import kernels
from localspec.native.kernels import KERNELS
from localspec.types import NO_TOKENS, Float32Array, LogitRows, Noise, Rule, SamplingParams, Tokens

SETTINGS = {
    "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05": SamplingParams(),
    "the same with penalties (64 tokens)": SamplingParams(repeat_penalty=1.1, presence_penalty=0.1),
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1, min-p 0.05": SamplingParams(temperature=1.0, top_k=0, top_p=1.0),
    "temperature 1, top-p 0.95": SamplingParams(temperature=1.0, top_k=0, min_p=0.0),
    "temperature 1, nothing else": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}


def make_rows(count: int, vocabulary: int) -> Float32Array:
    """Rows with the look of a language model's: a bell of logits and a few dozen tokens far above it."""
    rng = np.random.default_rng(7)
    rows = rng.normal(-2.0, 2.5, size=(count, vocabulary)).astype(np.float32)
    for row in rows:
        row[rng.choice(vocabulary, size=60, replace=False)] += rng.exponential(6.0, size=60).astype(np.float32) + 4
    return rows


def least(work: Callable[[], object], seconds: float) -> float:
    """Milliseconds of the fastest run."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def accepted_chain(rows: LogitRows, sampling: SamplingParams, history: Tokens, noise: Noise) -> Tokens:
    """The tokens the target itself says: each from its row, given the earlier ones."""
    path = history
    for i in range(len(rows) - 1):
        token, _ = kernels.sample(rows, i, sampling, path, noise, len(path))
        path = np.append(path, token)
    return path[len(history) :]


def time_verify(rows: LogitRows, sampling: SamplingParams, history: Tokens, seconds: float) -> float:
    noise = Noise(seed=1)
    draft = accepted_chain(rows, sampling, history, noise)
    parents = np.arange(-1, len(draft) - 1, dtype=np.int32)

    def work() -> int:
        arguments = (rows, draft, parents, None, sampling, history, noise, len(history), Rule.COUPLED)
        return len(kernels.verify(*arguments)[0])

    if work() != len(draft):
        raise SystemExit("the draft should have been accepted whole")
    return least(work, seconds)


class LlamaChain:
    """llama.cpp's sampler chain in its default order, through the low-level API."""

    def __init__(self, sampling: SamplingParams, history: Tokens, vocabulary: int) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        parts = []
        if sampling.repeat_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty:
            settings = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
            parts.append(llama_cpp.llama_sampler_init_penalties(vocabulary, sampling.penalty_last_n, *settings))
        if sampling.temperature == 0.0:
            parts.append(llama_cpp.llama_sampler_init_greedy())
        else:
            parts.append(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
            parts.append(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
            parts.append(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
            parts.append(llama_cpp.llama_sampler_init_temp(sampling.temperature))
            parts.append(llama_cpp.llama_sampler_init_dist(1))
        for part in parts:
            llama_cpp.llama_sampler_chain_add(chain, part)
        for token in history[-64:]:
            llama_cpp.llama_sampler_accept(chain, int(token))
        self._chain = chain

    def time(self, rows: Float32Array, seconds: float) -> tuple[float, float]:
        """Milliseconds with the candidate array filled by memcpy, and without filling it."""
        lib, (count, vocabulary) = self._lib, rows.shape
        kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        fresh = np.zeros((count, vocabulary), dtype=kind)
        fresh["id"], fresh["logit"] = np.arange(vocabulary), rows
        work = np.empty(vocabulary, dtype=kind)
        pointer = work.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        array = lib.llama_token_data_array()
        address, size = work.ctypes.data, work.nbytes
        whole = bare = float("inf")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            total = applied = 0.0
            for i in range(count):
                source = fresh[i].ctypes.data
                start = time.perf_counter()
                ctypes.memmove(address, source, size)
                filled = time.perf_counter()
                array.data, array.size, array.selected, array.sorted = pointer, vocabulary, -1, False
                lib.llama_sampler_apply(self._chain, ctypes.byref(array))
                stop = time.perf_counter()
                total += stop - start
                applied += stop - filled
            whole, bare = min(whole, total), min(bare, applied)
        return whole * 1e3, bare * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="per number")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    matrix = make_rows(args.rows, args.vocabulary)
    rows = LogitRows.from_matrix(matrix)
    history = np.random.default_rng(3).integers(0, args.vocabulary, size=500).astype(np.int32)
    results = []
    for name, sampling in SETTINGS.items():
        ours = time_verify(rows, sampling, history, args.seconds)
        filled, bare = LlamaChain(sampling, history, args.vocabulary).time(matrix, args.seconds)
        results.append({"setting": name, "localspec_ms": ours, "llama_ms": filled, "llama_apply_ms": bare,
                        "ratio": filled / ours, "ratio_apply": bare / ours})  # fmt: skip
    one = LogitRows.from_matrix(make_rows(1, 320))
    floor = least(
        lambda: kernels.verify(one, NO_TOKENS, NO_TOKENS, None, SamplingParams(), history, Noise(1), 500, Rule.COUPLED),
        1.0,
    )
    if args.json:
        print(json.dumps({"isa": KERNELS.isa, "one_small_row_ms": floor, "settings": results}, indent=1))
        return
    print(f"{args.rows} rows of vocabulary {args.vocabulary}, localspec_native ({KERNELS.isa})")
    print(f"{'':52}{'localspec':>10}{'llama.cpp':>11}{'ratio':>8}{'apply only':>12}{'ratio':>8}")
    for r in results:
        print(
            f"{r['setting']:52}{r['localspec_ms']:7.3f} ms{r['llama_ms']:8.2f} ms{r['ratio']:7.1f}x"
            f"{r['llama_apply_ms']:9.2f} ms{r['ratio_apply']:7.1f}x"
        )
    print(f"one call over one row of vocabulary 320: {floor * 1e3:.1f} us")


if __name__ == "__main__":
    main()
