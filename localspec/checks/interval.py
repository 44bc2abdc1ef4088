"""How sure a ratio of two times is: measured in pairs, with Student's t.

Both sides answer the same prompts, in the same rounds, one right after the other; a drifting machine moves both. The
ratio is that of the sums over all prompts, A / B. To first order its relative error is the sum of

    z = a / A - b / B

over all pairs (a, b), so the spread of z says how far the ratio may be off. Several rounds: z varies within a prompt
from round to round, and the prompts are what they are: the interval speaks of these prompts on this machine. One
round: z varies between prompts, whose content differs; the interval is wider and speaks of prompts like these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance
from typing import Literal

Pairs = Sequence[Sequence[tuple[float, float]]]
"""Per prompt, its rounds: (seconds of one side, seconds of the other)."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two total times and its 95 % interval."""

    value: float
    low: float
    high: float
    over: Literal["rounds", "prompts", ""]
    """What the interval was taken over; "" = there is none (one prompt, one round)."""
    smallest: float
    """Of the prompts' own ratios, ..."""
    largest: float

    @property
    def half_width(self) -> float:
        """Of the interval, as a share of the value."""
        return (self.high - self.low) / 2.0 / self.value if self.over else math.inf


def ratio(pairs: Pairs) -> Ratio | None:
    """Sum of the first times over sum of the second ones; None without any pair."""
    pairs = [one for one in pairs if one]
    if not pairs:
        return None
    means = [(fmean(a for a, _ in one), fmean(b for _, b in one)) for one in pairs]
    first, second = sum(a for a, _ in means), sum(b for _, b in means)
    value, own = first / second, [a / b for a, b in means]
    smallest, largest = min(own), max(own)
    freedom = sum(len(one) - 1 for one in pairs)
    if all(len(one) > 1 for one in pairs):
        within = sum(variance([a / first - b / second for a, b in one]) / len(one) for one in pairs)
        return _around(value, math.sqrt(within), freedom, "rounds", smallest, largest)
    if len(means) > 1:
        between = len(means) * variance([a / first - b / second for a, b in means])
        return _around(value, math.sqrt(between), len(means) - 1, "prompts", smallest, largest)
    return Ratio(value, value, value, "", smallest, largest)


def _around(
    value: float, error: float, freedom: int, over: Literal["rounds", "prompts"], smallest: float, largest: float
) -> Ratio:
    spread = t_quantile(freedom) * error
    return Ratio(value, value * math.exp(-spread), value * math.exp(spread), over, smallest, largest)


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t: exact for 1 and 2 degrees of freedom, to three digits beyond."""
    if freedom <= 2:
        return {1: 12.7062, 2: 4.3027}.get(freedom, math.inf)
    z, n = NormalDist().inv_cdf(0.975), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
