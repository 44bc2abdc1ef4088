"""Moving averages: a sample moves the usual value by a share of the difference."""

from __future__ import annotations

LEARNING_RATE = 0.1
"""Share of the difference by which one sample moves a usual value."""
CONVINCING_STREAK = 3
"""Number of equal events in a row that are taken for a change, not for an accident."""


def moved(usual: float, sample: float) -> float:
    """The usual value after one more sample."""
    return usual + LEARNING_RATE * (sample - usual)
