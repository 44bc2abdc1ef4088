"""Moving averages: a sample moves the usual value by a share of the difference."""

from __future__ import annotations

import math

LEARNING_RATE = 0.1
"""Share of the difference by which one sample moves a usual value."""
CONVINCING_STREAK = 3
"""Number of equal events in a row that are taken for a change, not for an accident."""
MOST_LOG_SURPRISE = 0.25
"""Log seconds by which one duration counts as off at most: a longer one was delayed by another program."""


def moved(usual: float, sample: float) -> float:
    """The usual value after one more sample."""
    return usual + LEARNING_RATE * (sample - usual)


def followed(known: float, seconds: float) -> float:
    """The known seconds after one more sample; the first sample replaces them."""
    if not known or not seconds:
        return seconds or known
    surprise = min(MOST_LOG_SURPRISE, max(-MOST_LOG_SURPRISE, math.log(seconds / known)))
    return known * (1.0 + LEARNING_RATE * surprise)
