"""Our own exp and log, sums in a fixed order, Philox and the noise made of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from localspec.types import Float64Array, Noise, Purpose, Tokens

UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

_U32 = np.uint64(0xFFFFFFFF)
_EXP_SERIES = [
    *(1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0),
    *(1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0),
]
"""1 / 13! to 1 / 0!."""


def exp(x: Float64Array) -> Float64Array:
    """e^x for x <= 700, within 1e-15 relative; exactly 0 below -690."""
    with np.errstate(all="ignore"):
        shifted = x * 1.4426950408889634 + 6755399441055744.0
        k = shifted - 6755399441055744.0
        r = (x - k * float.fromhex("0x1.62e42feep-1")) - k * float.fromhex("0x1.a39ef35793c76p-33")
        y = np.full(x.shape, _EXP_SERIES[0])
        for coefficient in _EXP_SERIES[1:]:
            y = y * r + coefficient
        scale = ((shifted.view(np.uint64) + np.uint64(1023)) << np.uint64(52)).view(np.float64)
        result: Float64Array = np.where(x < -690.0, 0.0, y * scale)
        return result


def log(x: Float64Array) -> Float64Array:
    """Natural logarithm of positive normal numbers, within 1 unit in the last place."""
    bits = x.view(np.uint64)
    k = (bits - np.uint64(0x3FE6A09E667F3BCD) + np.uint64(1024 << 52)) >> np.uint64(52)
    kd = (np.uint64(0x4330000000000000) | k).view(np.float64) - (4503599627370496.0 + 1024.0)
    f = (bits - (k << np.uint64(52)) + np.uint64(1024 << 52)).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    t2 = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half = 0.5 * f * f
    tail = s * (half + (t2 + t1)) + kd * 1.90821492927058770002e-10
    result: Float64Array = kd * 6.93147180369123816490e-01 - ((half - tail) - f)
    return result


def log1(x: float) -> float:
    return float(log(np.array([x], dtype=np.float64))[0])


def lane_sum(x: Float64Array) -> float:
    """The sum over 8 interleaved lanes, each front to back."""
    padded = np.zeros((max(1, -(-len(x) // 8)), 8))
    padded.reshape(-1)[: len(x)] = x
    lane = np.cumsum(padded, axis=0)[-1]
    return float(((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])))


# Noise


def _philox(c: list[UInt64Array], k0: int, k1: int) -> list[UInt64Array]:
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            b & _U32,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            a & _U32,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def philox4x32_10(counter: UInt32Array, key: UInt32Array) -> UInt32Array:
    words = _philox([np.array([w], dtype=np.uint64) for w in counter], int(key[0]), int(key[1]))
    return np.concatenate(words).astype(np.uint32)


def uniform(noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
    counter = np.empty((4, len(tokens)), dtype=np.uint64)
    counter[0] = tokens.view(np.uint32)
    counter[1] = position & 0xFFFFFFFF
    counter[2] = (int(purpose) | noise.round << 2) & 0xFFFFFFFF
    counter[3] = noise.stream & 0xFFFFFFFF
    words = _philox(list(counter), noise.seed & 0xFFFFFFFF, noise.seed >> 32 & 0xFFFFFFFF)
    result: Float64Array = (words[0].astype(np.float64) + 0.5) * 2.0**-32
    return result


def gumbel(noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
    result: Float64Array = -log(-log(uniform(noise, purpose, position, tokens)))
    return result
