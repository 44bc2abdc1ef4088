"""What the engine costs over llama.cpp itself, and what exactness costs, side by side in one run.

    python packaging/bench/plain_speed.py MODEL.gguf [--lengths 128,1536,3584] [--tokens 24] [--gpu-layers -1]

Plain decoding, temperature 0: a bare loop over llama.cpp's low-level functions at its best settings (repacking and
flash attention as it likes) against the engine with `exact` off, auto and strict, and off without localspec's kernels.
The runs take turns, so that a drifting machine hits all alike; a ratio is a median over rounds of tokens/s divided by
the bare loop's of that round. Each contender has a process of its own, because OpenMP's pools of several engines in one
process slow each other; those whose turn it is not sleep. Needs the model's size in memory for each (five).
"""

from __future__ import annotations

import argparse
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np

from localspec import Engine, SamplingParams
from localspec.config import Exactness
from localspec.llama.library import lib  # silences llama.cpp's log
from localspec.machine import default_threads

GREEDY = SamplingParams(temperature=0.0)


class Bare:
    """The low-level loop."""

    def __init__(self, path: str, n_ctx: int, threads: int, gpu_layers: int) -> None:
        lib.api()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = gpu_layers
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 512, 512
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.sampler = llama_cpp.llama_sampler_init_greedy()
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.held = 0
        self.about = f"{threads} threads, llama.cpp's defaults"

    def decode(self, tokens: list[int], start: int, logits: bool) -> None:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 0
            batch.seq_id[i][0] = 0
        batch.logits[len(tokens) - 1] = int(logits)
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")

    def speed(self, prompt: list[int], count: int) -> tuple[float, float]:
        """Tokens per second of `count` tokens after the prompt, prefilled the first time only; and 0 (no engine)."""
        memory = llama_cpp.llama_get_memory(self.context)
        if self.held != len(prompt):
            llama_cpp.llama_memory_clear(memory, False)
            for start in range(0, len(prompt) - 1, 512):
                self.decode(prompt[start : min(start + 512, len(prompt) - 1)], start, False)
            self.held = len(prompt)
        llama_cpp.llama_memory_seq_rm(memory, 0, len(prompt) - 1, -1)
        token, first = prompt[-1], 0.0
        for step in range(count + 1):
            self.decode([token], len(prompt) - 1 + step, True)
            token = llama_cpp.llama_sampler_sample(self.sampler, self.context, -1)
            first = first or perf_counter()  # the first token is not timed: an engine's first waits for its prompt
        return count / (perf_counter() - first), 0.0


class Ours:
    """The same through the engine: queue, thread, kernels and text included."""

    def __init__(self, path: str, n_ctx: int, threads: int, gpu_layers: int, exact: Exactness, wide: bool) -> None:
        self.engine = Engine.load(
            path, drafter="none", exact=exact, context=n_ctx, threads=threads, gpu_layers=gpu_layers, wide=wide
        )
        self.about = self.engine.loaded.exactness

    def speed(self, prompt: list[int], count: int) -> tuple[float, float]:
        """Tokens per second, and the engine's own seconds a pass."""
        generation = self.engine.generate(
            np.array(prompt, dtype=np.int32), sampling=GREEDY, max_tokens=count + 1, ignore_end=True
        )
        arrivals = [perf_counter() for event in generation for _ in event.tokens]
        stats = generation.stats
        host = (stats.host_seconds + stats.draft_seconds) / stats.passes
        return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0]), host


CONTENDERS: dict[str, tuple[Exactness, bool] | None] = {
    "llama.cpp": None,
    "exact=off": ("off", True),
    "exact=auto": ("auto", True),
    "exact=strict": ("strict", True),
    "off, no-wide": ("off", False),
}
"""Name: (exact, wide), or None = the bare loop."""

_contender: Bare | Ours
"""The one of this process."""


def load(name: str, *arguments: Any) -> None:
    """Start of a contender's process. Arguments: path, n_ctx, threads, gpu_layers."""
    global _contender
    settings = CONTENDERS[name]
    _contender = Bare(*arguments) if settings is None else Ours(*arguments, *settings)


def about() -> str:
    """What the contender of this process runs with."""
    return _contender.about


def speed(prompt: list[int], count: int) -> tuple[float, float]:
    """One run of the contender of this process."""
    return _contender.speed(prompt, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--lengths", default="128,1536,3584")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--gpu-layers", type=int, default=0, help="of every contender, -1 all; default: 0")
    parser.add_argument("--json", action="store_true", help="at the end the ratio of every length, by contender")
    options = parser.parse_args()
    lengths = [int(text) for text in options.lengths.split(",")]
    n_ctx = max(lengths) + options.tokens + 64

    processes = {}
    for name in CONTENDERS:
        arguments = (name, options.model, n_ctx, options.threads, options.gpu_layers)
        processes[name] = ProcessPoolExecutor(1, get_context("spawn"), load, arguments)
        print(f"{name}: {processes[name].submit(about).result()}", flush=True)
    host: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    generator = np.random.default_rng(1)
    print(f"\n{'context':>8} {'run':>14} {'tokens/s':>9} {'ratio':>6}")
    for length in lengths:
        prompt = [int(token) for token in generator.integers(300, 4_000, length)]
        for process in processes.values():
            process.submit(speed, prompt, 4).result()  # prefill
        speeds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(options.rounds):
            for name, process in processes.items():
                tokens_per_second, host_seconds = process.submit(speed, prompt, options.tokens).result()
                speeds[name].append(tokens_per_second)
                host += [host_seconds] if host_seconds else []
        for name, values in speeds.items():
            ratio = statistics.median(a / b for a, b in zip(values, speeds["llama.cpp"], strict=True))
            ratios[name].append(ratio)
            print(f"{length:8d} {name:>14} {statistics.median(values):9.2f} {ratio:6.3f}", flush=True)
    print(f"\nhost time of the engine: {statistics.median(host) * 1e3:.3f} ms a pass (median)")
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
