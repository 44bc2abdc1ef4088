"""The kernel of native/gpu on a GPU of CUDA: self-test, verdicts by lists beside those by whole rows, time. See gpu.py.

python packaging/bench/gpu_kernel.py self-test|verdicts|preselection [--rows 100000] [--vocab 152000]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from localspec.errors import KernelError
from localspec.native import kernels
from localspec.native.gpu import DeviceRows, Gpu, ListRequest
from localspec.types import NO_TOKENS, Float32Array, LogitRows, Noise, Rule, SamplingParams

POOL = 64
"""Rows of logits on the device; verdicts differ by their noise and settings."""
SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.1),
    SamplingParams(temperature=0.5, top_k=0, top_p=1.0, min_p=0.0, logit_bias=((7, 4.0), (9, -3.0))),
)
"""Every kind of list there is: by logit, by noise, by share, with patched tokens."""


class DeviceMemory:
    """Logits in the memory of a device, in the context that `Gpu` uses. Raises KernelError where the driver fails."""

    def __init__(self, driver: str, ordinal: int, matrix: Float32Array) -> None:
        self._driver = ctypes.CDLL(driver)
        device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        size, source = ctypes.c_size_t(matrix.nbytes), ctypes.c_void_p(matrix.ctypes.data)
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._call("cuMemcpyHtoDAsync_v2", address, source, size, ctypes.c_void_p())
        self._call("cuStreamSynchronize", ctypes.c_void_p())
        self._call("cuCtxPopCurrent_v2", ctypes.byref(context))
        self.address = int(address.value)

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error:
            raise KernelError(f"{name} failed with error {error}.")


def pool(vocab: int) -> Float32Array:
    """float32[POOL, vocab], as models make them: most are unlikely, some stand out."""
    rng = np.random.default_rng(1)
    matrix = rng.normal(0, 3, size=(POOL, vocab)).astype(np.float32)
    matrix[np.arange(POOL)[:, None], rng.integers(0, vocab, size=(POOL, 30))] += np.float32(9)
    return matrix


def verdicts(gpu: Gpu, memory: DeviceMemory, matrix: Float32Array, rows: int) -> dict[str, Any]:
    """Draws one token of each of so many rows in both ways."""
    vocab = matrix.shape[1]
    rng = np.random.default_rng(2)
    differing = by_lists = copied = 0

    def fetch(address: int, out: Float32Array) -> None:
        nonlocal copied
        copied += 1
        out[:] = matrix[(address - memory.address) // matrix.strides[0]]

    for number in range(rows):
        row, sampling = int(rng.integers(POOL)), SAMPLINGS[number % len(SAMPLINGS)]
        rest = (
            NO_TOKENS,
            NO_TOKENS,
            None,
            sampling,
            NO_TOKENS,
            Noise(int(rng.integers(2**63)), 1),
            number,
            Rule.COUPLED,
        )
        before = copied
        there = DeviceRows([memory.address + row * matrix.strides[0]], vocab, fetch, gpu)
        differing += (
            kernels.verify(there, *rest)[1] != kernels.verify(LogitRows.from_matrix(matrix[row : row + 1]), *rest)[1]
        )
        by_lists += copied == before
    return {"rows": rows, "vocab": vocab, "differing": differing, "by_lists": by_lists, "failure": gpu.failure}


def preselection(gpu: Gpu, memory: DeviceMemory, vocab: int, calls: int) -> dict[str, Any]:
    """Microseconds of a call for 8 rows, copies and Python included: the 40 largest logits, the largest by noise."""
    found: dict[str, Any] = {"rows": 8, "vocab": vocab}
    for name, mode, count in (("logits", 0, 40), ("noise", 1, 1)):
        request = ListRequest()
        request.words[:5] = mode, count, 0, vocab, 0x3F800000
        seconds = []
        for _ in range(calls):
            start = perf_counter()
            gpu.lists(memory.address, 8, request, np.arange(8, dtype=np.uint32))
            seconds.append(perf_counter() - start)
        found |= {f"{name}_median_us": 1e6 * statistics.median(seconds), f"{name}_least_us": 1e6 * min(seconds)}
    return found


def main() -> int:
    """Prints figures as JSON; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("self-test", "verdicts", "preselection"))
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--vocab", type=int, default=152_000)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--driver", default="libcuda.so.1", help="the driver's library")
    options = parser.parse_args()
    start = perf_counter()
    try:
        gpu = Gpu(options.device, Path(options.driver))
        opened = perf_counter() - start
        if options.step == "self-test":
            figures: dict[str, Any] = {"seconds": opened}
        else:
            matrix = pool(options.vocab)
            memory = DeviceMemory(options.driver, options.device, matrix)
            if options.step == "verdicts":
                figures = verdicts(gpu, memory, matrix, options.rows)
            else:
                figures = preselection(gpu, memory, options.vocab, options.calls)
        gpu.close()
    except (KernelError, OSError) as error:
        print(str(error) or "There is no driver of NVIDIA here.", file=sys.stderr)
        return 1
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
