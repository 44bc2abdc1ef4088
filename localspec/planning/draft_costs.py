"""Seconds that a drafter takes to guess and to read, learned from its drafts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.planning.learning import LEARNING_RATE

MOST_LOG_SURPRISE = 0.25
"""Log seconds by which one draft's time counts as off at most: a longer one was delayed by another program."""
MOST_READ_ALONG = 16
"""Most tokens read with a guess: a draft that read more tells the cost of reading, not of guessing."""


class DraftCosts:
    """Seconds a drafter takes: for a level of a draft, all slots in one batch, and for a token it must read before it
    can guess.

    Each level costs the same. If one pass guesses all levels (`OnePass`), the first costs everything.
    """

    def __init__(
        self, levels: Mapping[int, float] | None = None, read_seconds: float = 0.0, *, estimated: bool = False
    ) -> None:
        """
        Args:
            levels: {slots drafting together: seconds of a level}.
            read_seconds: per token read in bulk; 0 = unknown.
            estimated: no draft was timed yet.
        """
        self._levels, self.read_seconds = dict(levels or {}), read_seconds
        self.timed = bool(levels) and not estimated
        """Whether any draft was timed."""
        self._timed_reading = not estimated

    def level(self, slots: int) -> float:
        """Seconds of a level for `slots` slots, or for the next smaller known number of slots, or for the smallest; 0
        while nothing was timed or estimated."""
        known = [one for one in self._levels if one <= slots] or list(self._levels)
        return self._levels[min(known, key=lambda one: abs(one - slots))] if known else 0.0

    def reading(self, missing: int, slots: int) -> float:
        """Seconds of reading `missing` tokens over all slots; each slot's last one is part of a level."""
        return max(0, missing - slots) * self.read_seconds

    def observe(self, levels: float, missing: int, slots: int, seconds: float) -> None:
        """Learns from a draft: `seconds` for `levels` levels and `missing` read tokens. 0 levels: it only read."""
        extra, level = max(0, missing - slots), self.level(slots)
        if not 0.0 < seconds < math.inf:
            return
        if extra > MOST_READ_ALONG:
            known = self.read_seconds if self._timed_reading else 0.0
            self.read_seconds = _followed(known, max(0.0, seconds - levels * level) / extra)
            self._timed_reading = True
        elif levels > 0:
            guessing = max(seconds - self.reading(missing, slots), seconds / 2.0)
            self._levels[slots] = _followed(level if self.timed else 0.0, guessing / levels)
            self.timed = True

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {"levels": {str(slots): seconds for slots, seconds in self._levels.items()}, "read": self.read_seconds}

    @classmethod
    def from_json(cls, data: Any) -> DraftCosts:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: not what `to_json` makes.
        """
        levels = {int(slots): float(seconds) for slots, seconds in data["levels"].items()}
        read = float(data["read"])
        if not (0.0 <= read < math.inf and all(0.0 < one < math.inf for one in levels.values())):
            raise ValueError("a level takes some time")
        return cls(levels, read)


def _followed(known: float, seconds: float) -> float:
    """The known seconds after one more sample; the first sample replaces them."""
    if not known or not seconds:
        return seconds or known
    surprise = min(MOST_LOG_SURPRISE, max(-MOST_LOG_SURPRISE, math.log(seconds / known)))
    return known * (1.0 + LEARNING_RATE * surprise)
