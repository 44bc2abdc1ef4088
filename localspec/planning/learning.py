"""Moving averages: a sample moves the usual value by a share of the difference."""

from __future__ import annotations

LEARNING_RATE = 0.1
"""Share of the difference by which one sample moves a usual value."""
CONVINCING_STREAK = 3
"""Number of equal events in a row that are taken for a change, not for an accident."""


def moved(usual: float, sample: float) -> float:
    """The usual value after one more sample."""
    return usual + LEARNING_RATE * (sample - usual)


class Usual:
    """Usual seconds of something short. The first samples run cold and are left out; a stall counts in part."""

    def __init__(self) -> None:
        self.seconds, self._samples = 0.0, -CONVINCING_STREAK

    def add(self, seconds: float) -> None:
        """Adds a sample."""
        self._samples += 1
        if self._samples > 0:
            limited = min(seconds, CONVINCING_STREAK * self.seconds) if self.seconds else seconds
            self.seconds += max(LEARNING_RATE, 1.0 / self._samples) * (limited - self.seconds)
