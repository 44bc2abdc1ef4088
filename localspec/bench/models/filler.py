"""Random weights of any format: what a pass reads and multiplies where a benchmark model computes nothing."""

from __future__ import annotations

import numpy as np

from localspec.bench.models.gguf_package import gguf
from localspec.bench.models.model_file import Bytes, row_bytes

Type = gguf.GGMLQuantizationType

SCALES: dict[Type, tuple[tuple[int, float], ...]] = {
    Type.Q8_0: ((0, 1.0),),
    Type.Q4_0: ((0, 1.0),),
    Type.Q4_1: ((0, 1.0), (2, -7.5)),  # the minimum makes the mean of 0..15 vanish
    Type.Q5_0: ((0, 1.0),),
    Type.Q5_1: ((0, 1.0), (2, -15.5)),
    Type.IQ4_NL: ((0, 1.0),),
    Type.IQ4_XS: ((0, 1.0),),
    Type.IQ2_XXS: ((0, 1.0),),
    Type.IQ2_XS: ((0, 1.0),),
    Type.IQ2_S: ((0, 1.0),),
    Type.IQ3_XXS: ((0, 1.0),),
    Type.IQ3_S: ((0, 1.0),),
    Type.Q2_K: ((80, 1.0), (82, 1.5)),
    Type.Q3_K: ((108, 1.0),),
    Type.TQ2_0: ((64, 1.0),),
    Type.Q4_K: ((0, 1.0), (2, 7.5)),  # the minimum's scale makes the mean of 0..15 vanish
    Type.Q5_K: ((0, 1.0), (2, 15.5)),
    Type.Q6_K: ((208, 1.0),),
}
"""Where a block's float16 scales are (byte), relative to the first. Layouts: ggml-common.h."""


class Filler:
    """Random matrices of any type with a chosen deviation."""

    def __init__(self, seed: int = 1) -> None:
        self._generator = np.random.default_rng(seed)
        self._deviations: dict[Type, float] = {}
        self._floats = self._generator.standard_normal(1 << 22).astype(np.float32)

    def matrix(self, kind: Type, rows: int, columns: int) -> Bytes:
        """uint8[rows, bytes of a row], deviation 1 / sqrt(columns), so that activations keep their size."""
        deviation = columns**-0.5
        if kind in (Type.F16, Type.BF16):
            start = int(self._generator.integers(0, len(self._floats)))
            pool = np.roll(self._sixteen_bits(kind, np.float32(deviation)), -start)
            return np.resize(pool, rows * columns).view(np.uint8).reshape(rows, -1)
        return self._blocks(kind, rows, columns, deviation / self._deviation(kind))

    def _sixteen_bits(self, kind: Type, deviation: np.float32) -> Bytes:
        """The pool of random numbers, as uint16."""
        values = self._floats * deviation
        bits: Bytes = values.astype(np.float16).view(np.uint16) if kind == Type.F16 else values.view(np.uint16)[1::2]
        return bits

    def _deviation(self, kind: Type) -> float:
        """Of blocks of random bytes whose scale is 1."""
        if kind not in self._deviations:
            sample = self._blocks(kind, 64, 4096, 1.0)
            self._deviations[kind] = float(gguf.dequantize(sample, kind).std())
        return self._deviations[kind]

    def _blocks(self, kind: Type, rows: int, columns: int, scale: float) -> Bytes:
        data = np.frombuffer(self._generator.bytes(rows * row_bytes(kind, columns)), dtype=np.uint8)
        blocks = data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]).copy()
        for place, factor in SCALES[kind]:
            blocks[:, place : place + 2] = np.frombuffer(np.float16(scale * factor).tobytes(), dtype=np.uint8)
        whole: Bytes = blocks.reshape(rows, -1)
        return whole
