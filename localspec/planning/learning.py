"""How everything here learns: a sample moves what is usual by a share of the difference."""

from __future__ import annotations

RATE = 0.1
"""That share."""
IN_A_ROW = 3
"""Events in a row that are no accident."""


def moved(usual: float, sample: float) -> float:
    """What is usual after one more sample."""
    return usual + RATE * (sample - usual)
